from rolloutfleet_engine.cli import main

main()
