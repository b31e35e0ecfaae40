//! Both kinds of plugins on a directory of the test.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use super::*;
use crate::spec::IntoMap as _;

struct Place {
    dir: tempfile::TempDir,
    volumes: HostVolumes,
    plugins: Arc<VolumePlugins>,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let volumes = HostVolumes::default();
        let plugins = VolumePlugins::new(&dir.path().canonicalize().unwrap(), None, None, volumes.clone());
        Place { dir, volumes, plugins }
    }

    /// A program in the directory of plugins.
    fn program(&self, name: &str, script: &str) {
        let dir = self.dir.path().join("host_volume_plugins");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    async fn why(&self, wanted: &Provision) -> String {
        let error = self.plugins.create(wanted.clone()).await.unwrap_err();
        crate::alloc::chain(&error)
    }
}

fn wanted(plugin: &str, parameters: &[(&str, &str)]) -> Provision {
    Provision {
        id: "0c0f8ee3-0f5a-4d5e-8c4b-0f6d3f6a7b11".to_owned(),
        name: "data".to_owned(),
        namespace: "default".to_owned(),
        plugin: plugin.to_owned(),
        node_id: "n".to_owned(),
        node_pool: "default".to_owned(),
        capacity: (1, 2),
        parameters: parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).into_map(),
        path: PathBuf::new(),
    }
}

#[tokio::test]
async fn f1_mkdir_makes_a_directory_once_and_removes_it_once() {
    let place = Place::new();
    let own = wanted(MKDIR, &[("mode", "2751")]);
    // What was left by an agent that was killed before the directory was complete.
    std::fs::create_dir_all(place.dir.path().join("host_volumes").join(format!(".new-{}", own.id))).unwrap();
    let made = place.plugins.create(own.clone()).await.unwrap();
    assert_eq!(made.path, place.dir.path().canonicalize().unwrap().join("host_volumes").join(&own.id));
    assert_eq!(std::fs::metadata(&made.path).unwrap().mode() & 0o7777, 0o2751);
    assert_eq!(place.volumes.get("data").unwrap().path(), made.path);
    std::fs::create_dir(made.path.join("sub")).unwrap();
    std::fs::write(made.path.join("sub/kept"), "kept").unwrap();
    assert_eq!(place.plugins.create(own.clone()).await.unwrap(), made);
    assert_eq!(std::fs::read_to_string(made.path.join("sub/kept")).unwrap(), "kept");
    for _ in 0..2 {
        place.plugins.delete(own.clone()).await.unwrap();
        assert!(!made.path.exists() && place.volumes.get("data").is_none());
    }
    let left: Vec<_> = std::fs::read_dir(made.path.parent().unwrap()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(place.why(&wanted(MKDIR, &[("size", "1")])).await.contains("\"size\" is not known"));
    assert!(!made.path.exists());
    // A directory that somebody else has put there is not followed.
    std::os::unix::fs::symlink("/etc", &made.path).unwrap();
    let why = place.why(&own).await;
    assert!(why.contains("volume \"data\""), "{why}");
    let volumes = made.path.parent().unwrap();
    std::fs::set_permissions(volumes, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(place.why(&own).await.contains("others may write to"), "{}", place.why(&own).await);
}

const PROGRAM: &str = r#"
case "$1" in
fingerprint) echo "{\"version\": \"1.2.3\"}" ;;
create)
  env | grep ^DHV_ | sort >"$DHV_VOLUMES_DIR/../env-create"
  mkdir -p "$DHV_VOLUMES_DIR/own-$DHV_VOLUME_ID"
  echo "{\"path\": \"$DHV_VOLUMES_DIR/own-$DHV_VOLUME_ID\", \"bytes\": 4096}" ;;
delete)
  env | grep ^DHV_ | sort >"$DHV_VOLUMES_DIR/../env-delete"
  rm -rf "$DHV_CREATED_PATH" ;;
esac"#;

#[tokio::test]
async fn f1_a_program_gets_what_nomad_s_interface_gives() {
    let place = Place::new();
    place.program("own", PROGRAM);
    place.program("mute", "exit 3");
    let versions = place.plugins.versions().await;
    let expected = [("mkdir", "0.0.1"), ("own", "1.2.3")].map(|(name, told)| (name.to_owned(), told.to_owned()));
    assert_eq!(versions, BTreeMap::from(expected));
    let mut own = wanted("own", &[("a", "b \"c\"")]);
    let made = place.plugins.create(own.clone()).await.unwrap();
    let root = place.dir.path().canonicalize().unwrap();
    let path = root.join("host_volumes").join(format!("own-{}", own.id));
    assert_eq!(made, Provided { path: path.clone(), bytes: 4096 });
    let (shown, id) = (root.display(), &own.id);
    let env = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let common = format!(
        "DHV_NAMESPACE=default\nDHV_NODE_ID=n\nDHV_NODE_POOL=default\nDHV_OPERATION=OP\n\
         DHV_PARAMETERS={{\"a\":\"b \\\"c\\\"\"}}\nDHV_PLUGIN_DIR={shown}/host_volume_plugins\n\
         DHV_VOLUMES_DIR={shown}/host_volumes\nDHV_VOLUME_ID={id}\nDHV_VOLUME_NAME=data\n"
    );
    let sizes = "DHV_CAPACITY_MAX_BYTES=2\nDHV_CAPACITY_MIN_BYTES=1\n";
    assert_eq!(env("env-create"), format!("{sizes}{}", common.replace("=OP", "=create")));
    own.path.clone_from(&made.path);
    place.plugins.delete(own.clone()).await.unwrap();
    assert!(!path.exists());
    let created = format!("DHV_CREATED_PATH={}\n", path.display());
    assert_eq!(env("env-delete"), format!("{created}{}", common.replace("=OP", "=delete")));
    assert!(!root.join("volume_plugins/lock").join(&own.id).exists());
    // Its file is another one: it is asked again.
    place.program("own", "echo '{\"version\": \"1.2.4\"}' # longer");
    assert_eq!(place.plugins.versions().await["own"], "1.2.4");
}

#[tokio::test]
async fn f1_a_program_that_fails_or_that_others_can_write_is_named() {
    let place = Place::new();
    let own = wanted("own", &[]);
    assert!(place.why(&own).await.contains("there is no host volume plugin \"own\" here"));
    for (script, expected) in [
        ("echo '{\"error\": \"no space\"}'; exit 4", "it ended with status 4: no space"),
        ("echo oops >&2; exit 5", "it ended with status 5: oops"),
        ("kill -9 $$", "killed by signal 9"),
        ("echo '{\"path\": \"here\"}'", "it must print"),
        ("echo none", "it must print"),
        ("yes", "wrote more than"),
        ("echo '{\"path\": \"/nonexistent\"}'", "cannot use the directory /nonexistent of volume \"data\""),
    ] {
        place.program("own", script);
        let why = place.why(&own).await;
        assert!(why.contains(expected), "{script}: {why}");
        assert!(place.volumes.get("data").is_none());
    }
    place.program("own", PROGRAM);
    let file = place.dir.path().join("host_volume_plugins/own");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o775)).unwrap();
    assert!(place.why(&own).await.contains("others may write to"), "{}", place.why(&own).await);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(place.why(&own).await.contains("not executable"));
    assert_eq!(place.plugins.versions().await.len(), 1, "mkdir alone");
    for name in ["../own", ".own", "a/b", ""] {
        assert!(place.why(&wanted(name, &[])).await.contains("there is no host volume plugin"), "{name}");
    }
}
