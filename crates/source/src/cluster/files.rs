//! The files that the configuration of the cluster consists of. The kubelet and administrators
//! replace them while the agent runs: tokens, certificates, CAs.

use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use kube::Config;
use kube::config::{AuthInfo, Kubeconfig};
use nix::libc::O_NONBLOCK;

/// Bundles of CAs have some hundred kilobytes at most.
const MAX_SIZE: u64 = 4 << 20;

#[derive(Clone, Debug, Default)]
pub struct Files(Vec<PathBuf>);

/// Identifies the contents of all files without holding them: some are secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Files {
    /// A kubeconfig, and all files that it refers to.
    pub(crate) fn of_kubeconfig(
        paths: impl IntoIterator<Item = PathBuf>,
        kubeconfig: &Kubeconfig,
    ) -> Self {
        let mut files: Vec<PathBuf> = paths.into_iter().collect();
        let clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
        files.extend(clusters.filter_map(|c| c.certificate_authority.as_ref()).map(Into::into));
        let users = kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref());
        files.extend(users.flat_map(of_user));
        Self(files)
    }

    /// The files of a service account.
    pub(crate) fn of_pod(config: &Config) -> Self {
        Self(config.root_cert_file.iter().cloned().chain(of_user(&config.auth_info)).collect())
    }

    pub fn fingerprint(&self) -> Fingerprint {
        let mut hasher = DefaultHasher::new();
        for path in &self.0 {
            read(path).map_err(|error| error.kind()).hash(&mut hasher);
        }
        Fingerprint(hasher.finish())
    }
}

fn of_user(user: &AuthInfo) -> impl Iterator<Item = PathBuf> {
    let files = [&user.client_certificate, &user.client_key, &user.token_file];
    files.into_iter().flatten().map(PathBuf::from)
}

/// Reads a regular file. A pipe, for example, could be read only once.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let mut contents = Vec::new();
    if file.metadata()?.is_file() {
        file.take(MAX_SIZE).read_to_end(&mut contents)?;
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_file_of_a_kubeconfig_matters() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let kubeconfig = json!({
            "clusters": [{"name": "c", "cluster": {"certificate-authority": at("ca")}}],
            "users": [{"name": "u", "user": {
                "client-certificate": at("certificate"), "client-key": at("key"),
                "tokenFile": at("token")
            }}]
        });
        fs::write(at("kubeconfig"), kubeconfig.to_string()).unwrap();
        let kubeconfig = Kubeconfig::read_from(at("kubeconfig")).unwrap();
        let files = Files::of_kubeconfig([at("kubeconfig")], &kubeconfig);
        let mut seen = vec![files.fingerprint()];
        for name in ["ca", "certificate", "key", "token", "kubeconfig"] {
            for contents in ["one", "two"] {
                fs::write(at(name), contents).unwrap();
                let fingerprint = files.fingerprint();
                assert!(!seen.contains(&fingerprint), "{name}");
                assert_eq!(files.fingerprint(), fingerprint);
                seen.push(fingerprint);
            }
        }
        fs::remove_file(at("ca")).unwrap();
        assert!(!seen.contains(&files.fingerprint()));
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("kubeconfig");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let files = Files(vec![pipe]);
        assert_eq!(files.fingerprint(), files.fingerprint());
    }
}
