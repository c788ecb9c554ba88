//! Which cluster to use, and the credentials for it.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use axum::http::Uri;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use super::files::Files;

/// How the user wants to reach a cluster.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// A kubeconfig; without one as `kubectl` finds it, or as a pod does.
    pub kubeconfig: Option<PathBuf>,
    /// The text of a kubeconfig, of a parent process; it takes precedence.
    pub given_kubeconfig: Option<String>,
    /// A context of the kubeconfig other than its current one.
    pub context: Option<String>,
    /// Addresses of API servers that are tried before the configured one.
    pub api_servers: Vec<String>,
    /// Where to remember the addresses of API servers.
    pub state_directory: Option<PathBuf>,
}

/// The configuration from its files at one time.
pub struct Opened {
    pub config: Config,
    /// Where it comes from, for people.
    pub origin: String,
    /// URLs of the servers, at least one.
    pub urls: Vec<Uri>,
    pub files: Files,
}

impl Access {
    pub(super) async fn read(&self) -> Result<Opened> {
        let (mut config, origin, files) = self.config().await?;
        ensure!(config.proxy_url.is_none(), "{origin}: a proxy to the API server is not supported");
        let urls = self.urls(&config.cluster_url)?;
        for url in &urls {
            // The address is logged, and is a label of metrics.
            ensure!(
                !url.authority().is_some_and(|authority| authority.as_str().contains('@')),
                "the address of the API server has a user or password in it ({origin}).\n\
                 Give them as the user of a kubeconfig"
            );
        }
        config.cluster_url = urls.first().unwrap_or(&config.cluster_url).clone();
        Ok(Opened { config, origin, urls, files })
    }

    /// The URLs of `--api-servers`, then the configured one. None without TLS follows one with TLS.
    fn urls(&self, configured: &Uri) -> Result<Vec<Uri>> {
        let mut urls = Vec::new();
        for server in &self.api_servers {
            // What can't be read as an address may still have a password in it.
            let shown = if server.contains('@') { "(not shown)" } else { server };
            let url = server
                .parse::<Uri>()
                .with_context(|| format!("--api-servers {shown}: not a URL such as https://..."))?;
            urls.push(url);
        }
        if urls.iter().all(|url| url.scheme() == configured.scheme()) {
            urls.push(configured.clone());
        }
        Ok(urls)
    }

    /// What was asked for; else `KUBECONFIG`; else a pod's own account; else the user's file.
    async fn config(&self) -> Result<(Config, String, Files)> {
        if let Some(text) = &self.given_kubeconfig {
            let origin = "the parent process's kubeconfig".to_owned();
            let kubeconfig =
                Kubeconfig::from_yaml(text).with_context(|| format!("{origin}: can't be read"))?;
            return self.of_kubeconfig(kubeconfig, Vec::new(), origin).await;
        }
        if let Some(path) = &self.kubeconfig {
            let origin = format!("--kubeconfig {}", path.display());
            let kubeconfig =
                Kubeconfig::read_from(path).with_context(|| format!("{origin}: can't be read"))?;
            return self.of_kubeconfig(kubeconfig, vec![path.clone()], origin).await;
        }
        let in_pod = env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        if in_pod && self.context.is_none() && env::var_os("KUBECONFIG").is_none() {
            let config = Config::incluster().context(
                "the pod's own credentials can't be read.\n\
                 Is there a service account, and automountServiceAccountToken not false?",
            )?;
            let files = Files::of_pod(&config);
            return Ok((config, "this pod's service account".to_owned(), files));
        }
        let kubeconfig = Kubeconfig::read().context(
            "no cluster is configured, and no manifests are given.\n\
             Name a cluster with --kubeconfig FILE, or files with --manifests PATH",
        )?;
        let origin = env::var("KUBECONFIG").unwrap_or_else(|_| "~/.kube/config".to_owned());
        let paths = match env::var_os("KUBECONFIG") {
            Some(paths) => env::split_paths(&paths).collect(),
            None => env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect(),
        };
        self.of_kubeconfig(kubeconfig, paths, origin).await
    }

    async fn of_kubeconfig(
        &self,
        kubeconfig: Kubeconfig,
        paths: Vec<PathBuf>,
        origin: String,
    ) -> Result<(Config, String, Files)> {
        let files = Files::of_kubeconfig(paths, &kubeconfig);
        let current = kubeconfig.current_context.clone();
        let known: Vec<String> =
            kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
        let options =
            KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let context = self.context.clone().or(current).unwrap_or_default();
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &options).await.with_context(|| {
                format!(
                    "{origin}: context {context:?} can't be used; there are: {}",
                    known.join(", ")
                )
            })?;
        Ok((config, format!("context {context} of {origin}"), files))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use lb_process::ClientRequests;

    use super::*;

    const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: one, cluster: {server: 'http://192.0.2.1:8001'}}
- {name: two, cluster: {server: 'http://192.0.2.2:8001'}}
users: [{name: me, user: {}}]
contexts:
- {name: one, context: {cluster: one, user: me}}
- {name: two, context: {cluster: two, user: me}}
";

    async fn open(access: impl FnOnce(PathBuf) -> Access) -> Result<String, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        fs::write(&path, KUBECONFIG).unwrap();
        let opened = access(path).open(&ClientRequests::default()).await;
        opened.map(|opened| opened.description).map_err(|error| format!("{error:#}"))
    }

    #[tokio::test]
    async fn the_current_context_is_used_unless_another_is_named() {
        let current =
            open(|path| Access { kubeconfig: Some(path), ..Access::default() }).await.unwrap();
        assert!(current.starts_with("http://192.0.2.1:8001/ (context one of "), "{current}");
        let other = open(|path| Access {
            kubeconfig: Some(path),
            context: Some("two".to_owned()),
            ..Access::default()
        });
        let other = other.await.unwrap();
        assert!(other.starts_with("http://192.0.2.2:8001/ (context two of "), "{other}");
    }

    #[tokio::test]
    async fn credentials_in_the_servers_address_are_refused_and_not_repeated() {
        for (address, expected) in [
            ("https://admin:hunter2@192.0.2.9:6443", "user or password"),
            ("https://ad min:hunter2@192.0.2.9:6443", "--api-servers (not shown): not a URL"),
        ] {
            let error = open(|path| Access {
                kubeconfig: Some(path),
                api_servers: vec![address.to_owned()],
                ..Access::default()
            });
            let error = error.await.unwrap_err();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_context_that_is_not_there_is_named_with_those_that_are() {
        let error = open(|path| Access {
            kubeconfig: Some(path),
            context: Some("three".to_owned()),
            ..Access::default()
        });
        let error = error.await.unwrap_err();
        assert!(error.contains("context \"three\"") && error.contains("one, two"), "{error}");
    }

    #[tokio::test]
    async fn the_servers_address_can_be_another() {
        let opened = open(|path| Access {
            kubeconfig: Some(path),
            api_servers: vec!["https://198.51.100.7:6443".to_owned()],
            ..Access::default()
        });
        assert!(opened.await.unwrap().starts_with("https://198.51.100.7:6443/ "));
    }

    #[tokio::test]
    async fn a_kubeconfig_that_is_not_there_is_named() {
        let access = Access { kubeconfig: Some("/nowhere/config".into()), ..Access::default() };
        let error = format!("{:#}", access.open(&ClientRequests::default()).await.err().unwrap());
        assert!(error.contains("--kubeconfig /nowhere/config: can't be read"), "{error}");
    }
}
