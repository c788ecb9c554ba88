"""The Kubernetes project's own Python client against the embedded API: `client.py KUBECONFIG`.

Fails with what was not as it should be.
"""

import sys
import threading

from kubernetes import client, config, watch

config.load_kube_config(sys.argv[1])
core = client.CoreV1Api()
discovery = client.DiscoveryV1Api()
NAMESPACE = "default"


def service(name, **spec):
    spec.setdefault("ports", [client.V1ServicePort(port=80)])
    metadata = client.V1ObjectMeta(name=name, labels={"app": name})
    return client.V1Service(metadata=metadata, spec=client.V1ServiceSpec(**spec))


# Many at the same time, and all are there, each with an address of its own.
def create(first):
    for number in range(first, first + 25):
        core.create_namespaced_service(NAMESPACE, service(f"s{number}"))


threads = [threading.Thread(target=create, args=(first,)) for first in range(0, 100, 25)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
everything = core.list_namespaced_service(NAMESPACE)
assert len(everything.items) == 100, len(everything.items)
assert len({item.spec.cluster_ip for item in everything.items}) == 100

# The same in pieces.
names, token = [], None
while True:
    piece = core.list_namespaced_service(NAMESPACE, limit=30, _continue=token)
    names += [item.metadata.name for item in piece.items]
    token = piece.metadata._continue
    if not token:
        break
assert names == [item.metadata.name for item in everything.items], names

# Read, replace, patch.
read = core.read_namespaced_service("s1", NAMESPACE)
read.metadata.labels = {"tier": "front"}
replaced = core.replace_namespaced_service("s1", NAMESPACE, read)
assert replaced.metadata.labels == {"tier": "front"}
patched = core.patch_namespaced_service("s1", NAMESPACE, {"spec": {"type": "NodePort"}})
assert 30000 <= patched.spec.ports[0].node_port <= 32767
read.metadata.labels = {"tier": "back"}
try:
    core.replace_namespaced_service("s1", NAMESPACE, read)
    raise AssertionError("an old version was written over a newer one")
except client.ApiException as error:
    assert error.status == 409, error
try:
    core.create_namespaced_service(NAMESPACE, service("bad", ports=[client.V1ServicePort(port=0)]))
    raise AssertionError("port 0 was taken")
except client.ApiException as error:
    assert error.status == 422 and "must be between 1 and 65535" in error.body, error.body

# A watch from where a list ended.
begin = core.list_namespaced_service(NAMESPACE, label_selector="tier=front")
core.delete_namespaced_service("s1", NAMESPACE)
events = watch.Watch().stream(
    core.list_namespaced_service,
    NAMESPACE,
    label_selector="tier=front",
    resource_version=begin.metadata.resource_version,
    timeout_seconds=30,
)
event = next(iter(events))
assert (event["type"], event["object"].metadata.name) == ("DELETED", "s1"), event

# Slices with generated names, and everything at once away again.
slice_ = client.V1EndpointSlice(
    metadata=client.V1ObjectMeta(
        generate_name="s2-", labels={"kubernetes.io/service-name": "s2"}
    ),
    address_type="IPv4",
    endpoints=[client.V1Endpoint(addresses=["10.244.1.10"])],
    ports=[client.DiscoveryV1EndpointPort(port=8080)],
)
created = discovery.create_namespaced_endpoint_slice(NAMESPACE, slice_)
assert created.metadata.name.startswith("s2-") and len(created.metadata.name) == 8
discovery.delete_collection_namespaced_endpoint_slice(NAMESPACE)
assert discovery.list_namespaced_endpoint_slice(NAMESPACE).items == []
assert client.VersionApi().get_code().major == "1"
print("done")
