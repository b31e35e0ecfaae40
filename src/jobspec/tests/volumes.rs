//! `volume` and `volume_mount`.

use super::{Given, around_group, around_task, errors, job};
use crate::spec::{CsiKind, Propagation, Volume, VolumeMount};

/// A group with these insides of its volume and of its task's mount, which begin in lines 4 and 7.
fn both(volume: &str, mount: &str) -> String {
    format!(
        "job \"j\" {{\ngroup \"g\" {{\nvolume \"data\" {{\n{volume}\n}}\ntask \"t\" {{ \n volume_mount {{\n{mount}\n}}\n\
         driver = \"exec\"\n}}\n}}\n}}\n"
    )
}

const HOST: &str = "type = \"host\"\nsource = \"srv\"";
const AT: &str = "volume = \"data\"\ndestination = \"/data\"";

#[test]
fn f1_volumes_and_mounts_are_read() {
    let text = both(
        &format!("{HOST}\nread_only = true\nper_alloc = true\naccess_mode = \"single-node-writer\""),
        &format!("{AT}\nread_only = true\npropagation_mode = \"host-to-task\"\nselinux_label = \"Z\""),
    );
    let group = job(&text).groups.remove(0);
    let Volume { name, source, read_only, per_alloc, .. } = &group.volumes[0];
    assert_eq!((&**name, &**source, *read_only, *per_alloc), ("data", "srv", true, true));
    assert_eq!(group.volumes[0].source_of(3), "srv[3]");
    let VolumeMount { volume, destination, read_only, propagation, selinux_label, .. } =
        &group.tasks[0].volume_mounts[0];
    assert_eq!((&**volume, &**destination, *read_only), ("data", "/data", true));
    assert_eq!((*propagation, &**selinux_label), (Propagation::HostToTask, "Z"));
    let json = r#"{"Job": {"ID": "j", "TaskGroups": [{"Name": "g",
        "Volumes": {"data": {"Type": "host", "Source": "srv", "ReadOnly": false, "MountOptions": null}},
        "Tasks": [{"Name": "t", "Driver": "exec", "VolumeMounts": [{"Volume": "data", "Destination": "/data"}]}]}]}}"#;
    let group = job(json).groups.remove(0);
    assert_eq!((&*group.volumes[0].source, &*group.tasks[0].volume_mounts[0].destination), ("srv", "/data"));
}

#[test]
fn f1_a_csi_volume_says_how_it_is_used_and_its_flags_are_never_shown() {
    let volume = "type = \"csi\"\nsource = \"a\"\nattachment_mode = \"file-system\"\naccess_mode = \"multi-node-multi-writer\"\n\
                  mount_options {\nfs_type = \"ext4\"\nmount_flags = [\"noatime\", \"password=s3cret\"]\n}";
    let json = r#"{"Job": {"ID": "j", "TaskGroups": [{"Name": "g", "Volumes": {"data": {"Type": "csi", "Source": "a",
        "AttachmentMode": "file-system", "AccessMode": "multi-node-multi-writer",
        "MountOptions": {"FSType": "ext4", "MountFlags": ["noatime", "password=s3cret"]}}},
        "Tasks": [{"Name": "t", "Driver": "exec", "VolumeMounts": [{"Volume": "data", "Destination": "/data"}]}]}]}}"#;
    for text in [both(volume, AT), json.to_owned()] {
        let group = job(&text).groups.remove(0);
        let found = group.volumes[0].csi.as_ref().unwrap();
        assert_eq!((&*found.access_mode, &*found.attachment_mode), ("multi-node-multi-writer", "file-system"));
        assert_eq!((&*found.options.fs_type, &*found.options.flags[1]), ("ext4", "password=s3cret"));
        assert!(!format!("{group:?}").contains("s3cret") && format!("{group:?}").contains("[REDACTED]"));
    }
}

#[test]
fn f3_a_task_may_be_a_csi_plugin() {
    let plugin = |text: &str| around_task(&format!("csi_plugin {{\n{text}\n}}"));
    let found =
        job(&plugin("id = \"disk\"\ntype = \"node\"\nhealth_timeout = \"5s\"")).groups[0].tasks[0].csi_plugin.clone();
    let found = found.unwrap();
    assert_eq!((&*found.id, found.kind, found.health_timeout.as_secs()), ("disk", CsiKind::Node, 5));
    assert_eq!((&*found.mount_dir, &*found.stage_publish_base_dir), ("/csi", "/local/csi"));
    let other = "id = \"disk\"\ntype = \"monolith\"\nmount_dir = \"/csi\"\nstage_publish_base_dir = \"/csi-data\"";
    assert_eq!(job(&plugin(other)).groups[0].tasks[0].csi_plugin.as_ref().unwrap().health_timeout.as_secs(), 30);
    for (text, expected) in [
        ("type = \"node\"", "job.hcl:4: csi_plugin of task \"t\" has no id"),
        (
            "id = \"disk\"\ntype = \"x\"",
            "job.hcl:6: \"type\" in csi_plugin of task \"t\" must be \"node\", \"controller\" or \"monolith\", not \"x\"",
        ),
        (
            "id = \"disk\"\ntype = \"node\"\nstage_publish_base_dir = \"/csi/x\"",
            "job.hcl:7: stage_publish_base_dir \"/csi/x\" in csi_plugin of task \"t\" lies in mount_dir \"/csi\"",
        ),
        (
            "id = \"disk\"\ntype = \"node\"\nmount_dir = \"csi\"",
            "job.hcl:7: mount_dir in csi_plugin of task \"t\" must begin with a slash",
        ),
        (
            "id = \"disk\"\ntype = \"node\"\nmount_dir = \"/\"",
            "job.hcl:7: mount_dir \"/\" in csi_plugin of task \"t\" would cover",
        ),
    ] {
        let told = errors(&plugin(text));
        assert!(told.len() == 1 && told[0].starts_with(expected), "{expected}: {told:?}");
    }
}

#[test]
fn f1_what_is_wrong_with_them_has_its_line() {
    for (volume, mount, expected) in [
        (
            "type = \"disk\"\nsource = \"a\"",
            AT,
            "job.hcl:4: \"type\" in volume \"data\" of group \"g\" must be \"host\" or \"csi\"",
        ),
        ("source = \"a\"", AT, "job.hcl:3: \"type\" in volume \"data\""),
        ("type = \"host\"", AT, "job.hcl:3: volume \"data\" of group \"g\" has no source"),
        (
            "type = \"csi\"\nsource = \"a\"\naccess_mode = \"x\"",
            AT,
            "job.hcl:3: volume \"data\" of group \"g\" is a CSI volume without attachment_mode",
        ),
        (
            "type = \"csi\"\nsource = \"a\"\nattachment_mode = \"file-system\"",
            AT,
            "job.hcl:3: volume \"data\" of group \"g\" is a CSI volume without access_mode",
        ),
        (
            "type = \"csi\"\nsource = \"a\"\nattachment_mode = \"block-device\"\naccess_mode = \"x\"\nmount_options {\n}",
            AT,
            "job.hcl:8: volume \"data\" of group \"g\" is a raw device, which has no mount options",
        ),
        (
            "type = \"csi\"\nsource = \"a\"\nattachment_mode = \"x\"\naccess_mode = \"x\"\nsticky = true",
            AT,
            "job.hcl:8: volume \"data\" of group \"g\" is a CSI volume, which cannot be sticky",
        ),
        (
            "type = \"csi\"\nattachment_mode = \"x\"\naccess_mode = \"x\"",
            AT,
            "job.hcl:3: volume \"data\" of group \"g\" has no source; name the volume of the plugin",
        ),
        (
            &format!("{HOST}\nmount_options {{\n}}"),
            AT,
            "job.hcl:6: volume \"data\" of group \"g\" is a host volume, which has no mount options",
        ),
        (
            &format!("{HOST}\naccess_mode = \"single-node-reader-only\""),
            AT,
            "job.hcl:6: access_mode \"single-node-reader-only\"",
        ),
        (
            &format!("{HOST}\naccess_mode = \"multi-node-multi-writer\""),
            AT,
            "job.hcl:6: access_mode \"multi-node-multi-writer\"",
        ),
        (&format!("{HOST}\nper_alloc = true\nsticky = true"), AT, "job.hcl:6: per_alloc in volume \"data\""),
        (
            HOST,
            "volume = \"dta\"\ndestination = \"/x\"",
            "job.hcl:8: volume_mount of task \"t\": group \"g\" has no volume \"dta\" (did you mean \"data\"?)",
        ),
        (HOST, "destination = \"/x\"", "job.hcl:8: volume_mount of task \"t\" names no volume"),
        (HOST, "volume = \"data\"", "job.hcl:8: volume_mount of task \"t\" has no destination"),
        (
            HOST,
            "volume = \"data\"\ndestination = \"//.\"",
            "job.hcl:10: volume_mount of task \"t\": destination \"//.\" would cover the task's whole root",
        ),
        (
            HOST,
            "volume = \"data\"\ndestination = \"/a/../b\"",
            "job.hcl:10: volume_mount of task \"t\": destination \"/a/../b\" holds \"..\"; write the path",
        ),
        (HOST, &format!("{AT}\npropagation_mode = \"both\""), "job.hcl:11: propagation_mode \"both\""),
        (HOST, &format!("{AT}\nselinux_label = \"x\""), "job.hcl:11: selinux_label \"x\""),
        (
            HOST,
            &format!("{AT}\nread_only = true\npropagation_mode = \"bidirectional\""),
            "job.hcl:8: volume_mount of task \"t\": volume \"data\" cannot be mounted",
        ),
    ] {
        let told = errors(&both(volume, mount));
        assert!(told[0].starts_with(expected), "{expected}: {told:?}");
        assert_eq!(told.len(), 1, "{told:?}");
    }
    let system = both(&format!("{HOST}\nper_alloc = true"), AT).replacen("group", "type = \"system\"\ngroup", 1);
    assert!(errors(&system)[0].contains("per_alloc"), "{:?}", errors(&system));
    let canary = both(&format!("{HOST}\nper_alloc = true"), AT).replacen("task", "update {\ncanary = 1\n}\ntask", 1);
    assert!(errors(&canary)[0].contains("canaries"), "{:?}", errors(&canary));
    let docker = both(HOST, "volume = \"data\"\ndestination = \"data\"").replace("\"exec\"", "\"docker\"");
    assert!(errors(&docker)[0].contains("relative destination"), "{:?}", errors(&docker));
    let twice = around_group(
        "volume \"a\" {\ntype = \"host\"\nsource = \"a\"\n}\nvolume \"a\" {\ntype = \"host\"\nsource = \"b\"\n}",
    );
    assert!(
        errors(&twice)[0].starts_with("job.hcl:7: duplicate volume \"a\"; it stands in line 3"),
        "{:?}",
        errors(&twice)
    );
}

#[test]
fn f1_a_csi_volume_without_modes_is_valid_and_does_not_run() {
    let parsed = Given::default().parse(&both("type = \"csi\"\nsource = \"a\"", AT)).unwrap();
    let told: Vec<_> = parsed.refusals.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told.iter().zip(["attachment_mode = ", "access_mode = "]).all(|(told, fix)| told.contains(fix)),
        "{told:?}"
    );
}

#[test]
fn f1_a_disk_may_migrate_and_stick() {
    let parsed = Given::default()
        .parse(&around_group("ephemeral_disk {\nmigrate = true\nsticky = true\nsize = 500\n}"))
        .unwrap();
    assert!(parsed.refusals.is_empty() && parsed.warnings.len() == 2, "{parsed:?}");
}
