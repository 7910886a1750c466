"""The words and sentences of the simulated model: what its tokenizer was trained on is what it says."""

import random


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = words("""
answer question city weather file folder test error line number result value report user message table order price
train station river bridge garden market letter book page city map road house door window key value time day week
month year morning evening agent task tool function argument parameter string object list index search query
document database record field name address account invoice payment customer product stock shelf box package
shipment route driver ticket flight hotel room guest meal recipe kitchen doctor patient clinic medicine engine model
token session turn reward trainer policy sample batch step version weight server process memory disk network request
reply client family water school country state group problem hand part place case week company system program
government night point home room mother area money story fact month lot right study book job word business issue
side kind head house service friend father power hour game line member law car community name president team minute
idea body information back parent face level office door health person art war history party research moment teacher
force education language temperature distance speed height weather wind rain cloud island mountain forest ocean
planet energy matter light sound color
""")
VERBS = words("""
find check read write open close search compute compare count sort send fetch update delete create list show explain
plan verify test run call return print parse build move copy start stop wait follow use need know see think look ask
answer try choose change keep give take make want help work begin finish measure sum add subtract multiply divide
become leave feel bring believe hold happen provide include continue learn lead understand watch speak allow spend
grow offer remember consider appear serve expect reach remain suggest raise pass require report decide pull develop
collect describe compute evaluate estimate translate summarize generate filter select insert remove replace merge
split
""")
ADJECTIVES = words("""
new old small large short long first last next open closed empty full correct wrong simple hard early late free busy
cheap warm cold clear dark quiet fast slow exact missing available current recent final total average whole single
""")
ADVERBS = words("now then first again also only still soon here there already never always often once perhaps")
CONNECTIVES = words("because so but and while although until after before when if since unless")
NAMES = words("Ada Bruno Chen Dana Elif Farid Greta Hugo Ines Jonas Kemal Lena Marco Nadia Olga Pedro Rosa Sven Tara")
PLACES = words("Paris Berlin Lagos Lima Oslo Tokyo Delhi Cairo Quito Turin Zagreb Leeds Boston Austin Sydney Seoul")
SCHEMA_WORDS = words("type object properties required string integer number boolean array items enum description")


def sentence(rng: random.Random) -> str:
    noun, other = rng.choice(NOUNS), rng.choice(NOUNS)
    verb, second = rng.choice(VERBS), rng.choice(VERBS)
    adjective, adverb, link = rng.choice(ADJECTIVES), rng.choice(ADVERBS), rng.choice(CONNECTIVES)
    forms = (
        f"I {adverb} need to {verb} the {adjective} {noun}, {link} the {other} should {second} it.",
        f"The user wants me to {verb} the {noun} of {rng.choice(PLACES)} and to {second} the {other}.",
        f"Let me {verb} the {noun} first, {link} I have not seen the {adjective} {other} yet.",
        f"What is the {adjective} {noun} in {rng.choice(PLACES)}? Could you {verb} it for {rng.choice(NAMES)}?",
        f"{rng.choice(NAMES)} will {verb} a {noun} {adverb}; there are {rng.randint(2, 9999)} of them.",
        f"With that {noun} I can {verb} what was asked: the {other} is {adjective}, about {rng.random() * 100:.2f}.",
        f"That's the {noun} we're looking for, isn't it? It doesn't {verb} any {other}s.",
        f"Please {verb} the {noun}s that have been {second}ed by this {other}, or those which {verb} with your {noun}.",
    )
    return rng.choice(forms)
