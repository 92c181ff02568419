"""The official SDKs of Azure Web PubSub as client and as service, against the relay whose connection string is in the environment."""

import os
import sys
import time

from azure.core.exceptions import HttpResponseError
from azure.messaging.webpubsubclient import WebPubSubClient, WebPubSubClientCredential
from azure.messaging.webpubsubclient.models import CallbackType, SendMessageError, WebPubSubDataType
from azure.messaging.webpubsubservice import WebPubSubServiceClient

ALL = ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"]
service = WebPubSubServiceClient.from_connection_string(os.environ["CONNECTION_STRING"], hub="agents")


def cut():
    """Has all connections cut."""
    print("cut", flush=True)
    sys.stdin.readline()


def until(what, holds):
    for _ in range(1500):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError(f"not in time: {what}")


class Connected:
    """A client that has connected, with all that it got."""

    def __init__(self, user, roles=ALL):
        self.groups, self.server, self.connections = [], [], []
        url = lambda: service.get_client_access_token(user_id=user, roles=roles)["url"]
        # The client begins to wait for an acknowledgement only after it has sent: one that comes at once is noticed when this time is up.
        self.client = WebPubSubClient(WebPubSubClientCredential(client_access_url_provider=url), ack_timeout=0.5)
        self.client.subscribe(CallbackType.CONNECTED, lambda event: self.connections.append(event.connection_id))
        self.client.subscribe(CallbackType.GROUP_MESSAGE, lambda event: self.groups.append(event.data))
        self.client.subscribe(CallbackType.SERVER_MESSAGE, lambda event: self.server.append(event.data))
        self.client.open()
        until("connected", lambda: len(self.connections) == 1)


def refusal(work):
    try:
        work()
    except SendMessageError as error:
        return error.error_detail.name if error.error_detail else str(error)
    raise AssertionError("it was not refused")


def client_and_service():
    ann, bob = Connected("ann"), Connected("bob")
    bob.client.join_group("g")
    ann.client.send_to_group("g", "hello größe 🚢", WebPubSubDataType.TEXT)
    ann.client.send_to_group("g", {"a": [1, 2.5, None]}, WebPubSubDataType.JSON)
    until("messages of a group", lambda: len(bob.groups) == 2)
    assert bob.groups == ["hello größe 🚢", {"a": [1, 2.5, None]}], bob.groups

    # The same number twice is sent once.
    ann.client.send_to_group("g", "once", WebPubSubDataType.TEXT, ack_id=777)
    ann.client.send_to_group("g", "once", WebPubSubDataType.TEXT, ack_id=777)

    # From the service.
    service.send_to_group("g", {"from": "service"}, content_type="application/json")
    service.send_to_user("bob", "to bob", content_type="text/plain")
    service.send_to_connection(bob.connections[0], "to the connection", content_type="text/plain")
    service.send_to_all("to all", content_type="text/plain")
    until("messages of the service", lambda: len(bob.server) == 3 and len(bob.groups) == 4)
    assert bob.server == ["to bob", "to the connection", "to all"], bob.server
    assert bob.groups[2:] == ["once", {"from": "service"}], bob.groups
    assert service.connection_exists(ann.connections[0]) and not service.connection_exists("nobody")
    assert service.group_exists("g") and not service.group_exists("h")
    assert service.user_exists("bob") and not service.user_exists("carl")
    service.add_connection_to_group("h", ann.connections[0])
    service.add_user_to_group("h", "bob")
    assert service.group_exists("h")
    service.remove_connection_from_group("h", ann.connections[0])
    service.remove_user_from_group("h", "bob")
    assert not service.group_exists("h")

    # Without a role.
    carl = Connected("carl", [])
    assert refusal(lambda: carl.client.join_group("g")) == "Forbidden"
    service.grant_permission("joinLeaveGroup", carl.connections[0], target_name="g")
    assert service.has_permission("joinLeaveGroup", carl.connections[0], target_name="g")
    carl.client.join_group("g")
    service.revoke_permission("joinLeaveGroup", carl.connections[0], target_name="g")
    assert not service.has_permission("joinLeaveGroup", carl.connections[0], target_name="g")
    carl.client.close()

    # With another key.
    other = WebPubSubServiceClient.from_connection_string(
        os.environ["CONNECTION_STRING"].replace("AccessKey=", "AccessKey=x"), hub="agents"
    )
    try:
        other.send_to_all("x", content_type="text/plain")
        raise AssertionError("a foreign token was taken")
    except HttpResponseError as error:
        assert error.status_code == 401, error

    recovers(ann, bob)
    text = "x" * 1_100_000
    print("1.1 MB:", refusal(lambda: ann.client.send_to_group("g", text, WebPubSubDataType.TEXT)), flush=True)
    assert all(len(data) < 10 for data in bob.groups[4:]), "it went to nobody"
    ann.client.close()
    bob.client.close()


def recovers(ann, bob):
    """Messages that are sent while connections are cut arrive once, in order."""
    before, count = len(bob.groups), 60
    for number in range(count):
        if number in (10, 30, 50):
            cut()
        while True:
            try:
                # The client would take a new number for another attempt.
                ann.client.send_to_group("g", str(number), WebPubSubDataType.TEXT, ack_id=10_000 + number)
                break
            except Exception:  # pylint: disable=broad-except
                time.sleep(0.05)
    until("all messages", lambda: len(bob.groups) >= before + count)
    time.sleep(0.3)
    assert [int(data) for data in bob.groups[before:]] == list(range(count)), bob.groups[before:]
    assert (len(ann.connections), len(bob.connections)) == (1, 1), "recovered, and not begun again"


def forgotten():
    """The service forgets a connection as soon as it is lost."""
    ann = Connected("ann")
    ann.client.join_group("g")
    cut()
    until("another connection", lambda: len(ann.connections) == 2)
    time.sleep(0.5)
    service.send_to_group("g", "welcome back", content_type="text/plain")
    until("a message of the group", lambda: len(ann.groups) == 1)
    assert ann.groups == ["welcome back"], ann.groups
    ann.client.close()


(forgotten if sys.argv[1] == "forgotten" else client_and_service)()
print("all of it holds", flush=True)
os._exit(0)
