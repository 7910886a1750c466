from tests.unit.operator.cluster.api_server import ApiServer, api_of


async def test_a_name_with_slashes_leads_into_no_other_namespace() -> None:
    server = ApiServer()
    server.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "other", "name": "keys"}})
    async with api_of(server) as api:
        assert await api.get("Secret", "rl", "../../other/secrets/keys") is None
        assert await api.get("Secret", "other", "keys") is not None
