//! kubectl with pools in the forms that MetalLB documents, and AddressPools.

use std::path::Path;
use std::process::Command;

use super::api_server;
use super::kubectls::kubectls;
use super::world::SOON;

const METALLB: &str = "
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata:
  name: lan
  namespace: metallb-system
spec:
  addresses:
  - 10.70.0.0/30
  - 10.70.9.1-10.70.9.2
  avoidBuggyIPs: true
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata:
  name: leased
  namespace: metallb-system
  labels:
    net: internet
spec:
  addresses:
  - 203.0.113.64/30
  - 2001:db8:70::/124
  autoAssign: false
  serviceAllocation:
    priority: 50
    namespaces:
    - default
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata:
  name: all
  namespace: metallb-system
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata:
  name: some
  namespace: metallb-system
spec:
  ipAddressPools:
  - lan
  ipAddressPoolSelectors:
  - matchLabels:
      net: internet
  nodeSelectors:
  - matchLabels:
      kubernetes.io/hostname: rack-1
  interfaces:
  - eth3
---
apiVersion: v1
kind: Service
metadata:
  name: plain
spec:
  type: LoadBalancer
  ports:
  - port: 80
---
apiVersion: v1
kind: Service
metadata:
  name: both
  annotations:
    metallb.io/address-pool: leased
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  ports:
  - port: 80
---
apiVersion: v1
kind: Service
metadata:
  name: dns-tcp
  annotations:
    metallb.io/allow-shared-ip: dns
    metallb.universe.tf/loadBalancerIPs: 10.70.9.2
spec:
  type: LoadBalancer
  ports:
  - port: 53
---
apiVersion: v1
kind: Service
metadata:
  name: dns-udp
  annotations:
    metallb.io/allow-shared-ip: dns
spec:
  type: LoadBalancer
  loadBalancerIP: 10.70.9.2
  ports:
  - port: 53
    protocol: UDP
";

const OWN: &str = "
apiVersion: millrace.io/v1alpha1
kind: AddressPool
metadata: {name: edge}
spec:
  addresses: [198.51.100.16/30, 198.51.100.40-198.51.100.41, 198.51.100.50, '2001:db8:71::/64']
  autoAssign: false
  announcements:
  - nodeSelector: {matchLabels: {edge: 'true'}}
    interfaces: ['bond*']
---
apiVersion: v1
kind: Service
metadata:
  name: edge
  annotations: {millrace.io/address-pool: edge}
spec: {type: LoadBalancer, ports: [{port: 443}]}
---
apiVersion: v1
kind: Service
metadata: {name: nowhere}
spec: {type: LoadBalancer, loadBalancerIP: 192.0.2.200, ports: [{port: 443}]}
";

struct Kubectl<'a> {
    program: &'a Path,
    directory: &'a Path,
}

impl Kubectl<'_> {
    fn try_run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(self.program);
        command.arg("--kubeconfig").arg(self.directory.join("kubeconfig"));
        command.arg("--cache-dir").arg(self.directory.join("cache"));
        let output = command.args(arguments).output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }

    fn run(&self, arguments: &[&str]) -> String {
        self.try_run(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }

    fn apply(&self, name: &str, manifests: &str) {
        let file = self.directory.join(name);
        std::fs::write(&file, manifests).unwrap();
        self.run(&["apply", "-f", file.to_str().unwrap()]);
    }

    /// Waits by kubectl for the condition of a Service, and returns its addresses.
    fn addresses(&self, service: &str) -> String {
        let timeout = format!("--timeout={}s", SOON.as_secs());
        let condition = "--for=condition=millrace.io/AddressAssigned";
        self.run(&["wait", condition, &timeout, &format!("service/{service}")]);
        let path = "jsonpath={.status.loadBalancer.ingress[*].ip}";
        self.run(&["get", "service", service, "-o", path])
    }
}

#[tokio::test]
async fn pools_in_the_forms_of_metallb_and_own_ones_give_addresses() {
    let Some((_, program)) = kubectls().last_key_value() else { return };
    let directory = tempfile::tempdir().unwrap();
    let _server = api_server::start(directory.path()).await;
    let kubectl = Kubectl { program, directory: directory.path() };
    kubectl.apply("metallb.yaml", METALLB);
    assert_eq!(kubectl.addresses("plain"), "10.70.0.1");
    assert_eq!(kubectl.addresses("both"), "203.0.113.64 2001:db8:70::");
    assert_eq!(kubectl.addresses("dns-tcp"), "10.70.9.2");
    assert_eq!(kubectl.addresses("dns-udp"), "10.70.9.2");

    kubectl.apply("own.yaml", OWN);
    assert_eq!(kubectl.addresses("edge"), "198.51.100.16");
    let timeout = format!("--timeout={}s", SOON.as_secs());
    let condition = "--for=condition=millrace.io/AddressAssigned=false";
    kubectl.run(&["wait", condition, &timeout, "service/nowhere"]);
    // The Event may be later than the condition.
    let began = std::time::Instant::now();
    let described = loop {
        let described = kubectl.run(&["describe", "service", "nowhere"]);
        if described.contains("AddressNotAssigned") || began.elapsed() > SOON {
            break described;
        }
    };
    assert!(
        described.contains("NotInPool: no address pool contains 192.0.2.200: add it to one"),
        "{described}"
    );
    let pools = kubectl.run(&["get", "addresspools"]);
    let header: Vec<&str> = pools.lines().next().unwrap().split_whitespace().collect();
    let columns = ["NAME", "ADDRESSES", "AUTO", "ASSIGN", "USED", "FREE", "USED6", "FREE6", "AGE"];
    assert_eq!(header, columns);
    let used = "--for=jsonpath={.status.usedIPv4}=1";
    kubectl.run(&["wait", used, &timeout, "addresspool/edge"]);

    let wrong = OWN.replace("198.51.100.50", "not-an-address");
    std::fs::write(directory.path().join("wrong.yaml"), wrong).unwrap();
    let file = directory.path().join("wrong.yaml");
    let error = kubectl.try_run(&["apply", "-f", file.to_str().unwrap()]).unwrap_err();
    assert!(error.contains("spec.addresses[2]"), "{error}");
    let explained = kubectl.run(&["explain", "addresspool.spec.avoidBuggyIPs"]);
    assert!(explained.contains(".255"), "{explained}");
}
