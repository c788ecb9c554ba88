use std::os::unix::fs::symlink;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::timeout;

use super::*;

fn service(name: &str, address: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{clusterIP: {address}}}\n"
    )
}

/// A directory whose files are read again and again.
struct Directory {
    directory: TempDir,
    files: Files,
    reported: Contents,
}

impl Directory {
    fn new(files: &[(&str, String)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut new = Self { directory, files: Files::default(), reported: Contents::default() };
        for (name, text) in files {
            new.write(name, text);
        }
        new.changes();
        new
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    /// A summary of what reading now would report.
    fn changes(&mut self) -> Vec<String> {
        let now = self.files.read(&[self.path().to_owned()], Kind::OF_AGENT);
        let reported = difference(&self.reported, &now);
        self.reported = now;
        let prefix = format!("{}/", self.path().display());
        reported.iter().map(|event| short(event).replace(&prefix, "")).collect()
    }
}

fn short(event: &Event) -> String {
    match event {
        Event::Applied(object) => format!("applied {}", object.reference()),
        Event::Deleted(reference) => format!("deleted {reference}"),
        Event::Synced(_) => "synced".to_owned(),
        Event::Problem(problem) => format!("problem {problem}"),
        Event::Together(events) => events.iter().map(short).collect::<Vec<_>>().join(", "),
    }
}

#[test]
fn only_differences_are_reported() {
    let text = |name| format!("{}{}", service("web", "10.96.0.1"), service(name, "10.96.0.2"));
    let mut directory = Directory::new(&[("a.yaml", text("gone"))]);
    directory.write("a.yaml", &text("new"));
    assert_eq!(
        directory.changes(),
        ["deleted Service default/gone", "applied Service default/new"]
    );
    assert_eq!(directory.changes(), [""; 0]);
}

#[test]
fn a_changed_object_is_reported_again() {
    let mut directory = Directory::new(&[("a.yaml", service("web", "10.96.0.1"))]);
    directory.write("a.yaml", &service("web", "10.96.0.2"));
    assert_eq!(directory.changes(), ["applied Service default/web"]);
}

#[test]
fn files_come_and_go_and_only_manifests_count() {
    let mut directory = Directory::new(&[("a.yaml", service("a", "10.96.0.1"))]);
    directory.write("b.json", r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}"#);
    directory.write("c.txt", &service("c", "10.96.0.3"));
    directory.write(".d.yaml.swp", &service("d", "10.96.0.4"));
    assert_eq!(directory.changes(), ["applied Node n"]);
    fs::remove_file(directory.path().join("a.yaml")).unwrap();
    assert_eq!(directory.changes(), ["deleted Service default/a"]);
}

#[test]
fn an_object_may_move_to_another_file() {
    let mut directory = Directory::new(&[("a.yaml", service("web", "10.96.0.1"))]);
    fs::rename(directory.path().join("a.yaml"), directory.path().join("b.yaml")).unwrap();
    assert_eq!(directory.changes(), [""; 0]);
}

#[test]
fn an_object_in_two_files_counts_once() {
    let mut directory = Directory::new(&[("a.yaml", service("web", "10.96.0.1"))]);
    directory.write("b.yaml", &service("web", "10.96.0.2"));
    let twice = "problem b.yaml: Service default/web: is defined twice; the first one counts";
    assert_eq!(directory.changes(), [twice]);
}

#[test]
fn a_file_that_breaks_keeps_its_last_valid_content() {
    let mut directory = Directory::new(&[("a.yaml", service("web", "10.96.0.1"))]);
    directory.write("a.yaml", "kind: [\n");
    let [reported] = &directory.changes()[..] else { panic!() };
    assert!(reported.starts_with("problem a.yaml:2:1: not YAML"), "{reported}");
    assert!(reported.ends_with("its last valid content stays programmed"), "{reported}");
    directory.write("a.yaml", &service("web", "10.96.0.2"));
    assert_eq!(directory.changes(), ["applied Service default/web"]);
    assert!(directory.reported.problems.is_empty());
}

#[test]
fn an_object_that_breaks_keeps_its_last_valid_state_and_the_others_follow() {
    let text = format!("{}{}", service("a", "10.96.0.1"), service("b", "10.96.0.2"));
    let mut directory = Directory::new(&[("a.yaml", text.clone())]);
    for broken in ["[1]", "[2]"] {
        directory.write("a.yaml", &text.replace("10.96.0.1", broken).replace("0.2", "0.3"));
        let reported = directory.changes();
        assert!(reported.iter().all(|reported| !reported.contains("deleted")), "{reported:?}");
    }
    assert_eq!(directory.reported.objects.len(), 2);
    directory.write("a.yaml", &service("b", "10.96.0.3"));
    assert_eq!(directory.changes(), ["deleted Service default/a"]);
}

#[test]
fn an_emptied_file_is_waited_for_but_one_without_objects_is_meant() {
    let mut directory = Directory::new(&[("a.yaml", service("web", "10.96.0.1"))]);
    directory.write("a.yaml", "");
    let [reported] = &directory.changes()[..] else { panic!() };
    assert!(reported.starts_with("problem a.yaml: is empty"), "{reported}");
    directory.write("a.yaml", "# nothing\n");
    assert_eq!(directory.changes(), ["deleted Service default/web"]);
}

#[test]
fn a_start_with_what_is_no_yaml_is_refused_with_the_line() {
    let directory = Directory::new(&[("a.yaml", service("web", "10.96.0.1"))]);
    directory.write("broken.yaml", "kind: Service\nmetadata: {name: [}\n");
    let error = Manifests::open(vec![directory.path().to_owned()]).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.starts_with("--manifests ") && error.contains("broken.yaml:2:"), "{error}");
}

#[test]
fn a_start_without_the_file_is_refused() {
    let error = Manifests::open(vec!["/nowhere/a.yaml".into()]).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("/nowhere/a.yaml: can't be read: No such file"), "{error}");
}

/// A running source, whose reports are awaited.
struct Running {
    events: mpsc::UnboundedReceiver<Event>,
}

impl Running {
    async fn start(path: PathBuf) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let manifests = Manifests::open(vec![path]).unwrap();
        tokio::spawn(async move { manifests.run(sender).await.unwrap() });
        Self { events }
    }

    /// A failure, not a measure: nothing takes this long.
    async fn next(&mut self) -> String {
        let event = timeout(Duration::from_secs(120), self.events.recv()).await;
        short(&event.expect("nothing was reported").expect("the source ended"))
    }
}

#[tokio::test]
async fn a_directory_is_read_once_and_then_watched() {
    let directory = Directory::new(&[("a.yaml", service("a", "10.96.0.1"))]);
    let mut running = Running::start(directory.path().to_owned()).await;
    assert_eq!(running.next().await, "applied Service default/a");
    assert_eq!(running.next().await, "synced");

    directory.write("a.yaml", &service("in-place", "10.96.0.1"));
    assert_eq!(running.next().await, "deleted Service default/a, applied Service default/in-place");

    directory.write("new", &service("renamed", "10.96.0.1"));
    fs::rename(directory.path().join("new"), directory.path().join("a.yaml")).unwrap();
    assert_eq!(
        running.next().await,
        "deleted Service default/in-place, applied Service default/renamed"
    );

    directory.write("b.yaml", &service("b", "10.96.0.2"));
    assert_eq!(running.next().await, "applied Service default/b");
    fs::remove_file(directory.path().join("a.yaml")).unwrap();
    assert_eq!(running.next().await, "deleted Service default/renamed");
}

#[tokio::test]
async fn a_single_file_is_watched_through_its_replacement() {
    let directory = Directory::new(&[("a.yaml", service("a", "10.96.0.1"))]);
    let mut running = Running::start(directory.path().join("a.yaml")).await;
    assert_eq!(running.next().await, "applied Service default/a");
    assert_eq!(running.next().await, "synced");
    for name in ["b", "c"] {
        directory.write("new", &service(name, "10.96.0.1"));
        fs::rename(directory.path().join("new"), directory.path().join("a.yaml")).unwrap();
        let reported = running.next().await;
        assert!(reported.starts_with("deleted"), "{reported}");
        assert!(reported.ends_with(&format!(", applied Service default/{name}")), "{reported}");
    }
}

#[tokio::test]
async fn a_directory_that_replaces_another_is_watched() {
    let top = Directory::new(&[]);
    let versions = ["v1", "v2"].map(|version| top.path().join(version));
    for (version, path) in ["one", "two"].into_iter().zip(&versions) {
        fs::create_dir(path).unwrap();
        fs::write(path.join("a.yaml"), service(version, "10.96.0.1")).unwrap();
    }
    let current = top.path().join("current");
    symlink(&versions[0], &current).unwrap();
    let mut running = Running::start(current.clone()).await;
    assert_eq!(running.next().await, "applied Service default/one");
    assert_eq!(running.next().await, "synced");

    symlink(&versions[1], top.path().join("next")).unwrap();
    fs::rename(top.path().join("next"), &current).unwrap();
    assert_eq!(running.next().await, "deleted Service default/one, applied Service default/two");

    fs::write(versions[1].join("a.yaml"), service("three", "10.96.0.1")).unwrap();
    assert_eq!(running.next().await, "deleted Service default/two, applied Service default/three");
}
