//! Networks of groups, and those that tasks had of their own before groups had some.

use super::name::{LONGEST_NAME, check_name};
use super::schema::{CNI, DNS, NETWORK, PORT, Schema, TASK_NETWORK, TASK_PORT};
use super::section::{Expanded, Section};
use crate::spec::collections::BTreeMap;
use crate::spec::{Dns, HostNetwork, Network, NetworkMode, Port, Pos, Task};

/// The network that a port is on which names none.
const DEFAULT: &str = "default";

/// The `network` block of a group.
pub(super) fn of_group(group: &Section<'_>) -> Option<Network> {
    let section = only(group, &NETWORK)?;
    let asked = section.string("mode").unwrap_or_default();
    let mode = mode(&asked).unwrap_or_else(|| {
        let message = format!(
            "network mode \"{asked}\" is not supported by agentbin run; use \"host\", \"bridge\", \"none\" or \"cni/NAME\""
        );
        section.refuse(section.pos_of("mode"), message);
        NetworkMode::Host
    });
    let hostname = section.string("hostname").unwrap_or_default();
    if !hostname.is_empty() && mode == NetworkMode::Host {
        let message = "hostname in network needs mode \"bridge\", \"none\" or \"cni/NAME\"; remove it";
        section.refuse(section.pos_of("hostname"), message);
    }
    let texts = |section: &Section<'_>, name: &str| section.texts(name).unwrap_or_default();
    let dns = section.child("dns", &DNS).map(|dns| Dns {
        servers: texts(&dns, "servers"),
        searches: texts(&dns, "searches"),
        options: texts(&dns, "options"),
    });
    let cni_args: BTreeMap<String, String> =
        section.child("cni", &CNI).map(|cni| cni.strings("args")).unwrap_or_default();
    // Plugins would refuse what they cannot tell apart, also when they are to disconnect it.
    if cni_args.iter().any(|(name, value)| [name, value].into_iter().any(|text| text.contains([';', '=', '\0']))) {
        section.error(section.pos, "args in cni must have no \";\", \"=\" or NUL".to_owned());
    }
    let pos = section.pos_of("mode").clone();
    Some(Network { mode, ports: ports(&section, &PORT), hostname, dns, cni_args, pos })
}

fn mode(text: &str) -> Option<NetworkMode> {
    match text {
        "" | "host" => Some(NetworkMode::Host),
        "none" => Some(NetworkMode::None),
        "bridge" => Some(NetworkMode::Bridge),
        _ => text.strip_prefix("cni/").filter(|name| !name.is_empty()).map(|name| NetworkMode::Cni(name.to_owned())),
    }
}

/// The `network` block of a task's resources.
pub(super) fn of_task(resources: &Section<'_>) -> Option<Network> {
    let section = only(resources, &TASK_NETWORK)?;
    let message = "network in resources is deprecated; move it to the group";
    section.sink.warn(section.pos, message);
    if let Some(mode) = section.string("mode")
        && !matches!(mode.as_str(), "" | "host")
    {
        let message = format!(
            "network mode \"{mode}\" in resources has no effect: a task's own network is the host's; move it to the group"
        );
        section.sink.warn(section.pos_of("mode"), message);
    }
    Some(Network { ports: ports(&section, &TASK_PORT), ..Network::default() })
}

/// The one network of a group or of a task's resources.
fn only<'a>(owner: &Section<'a>, schema: &Schema) -> Option<Section<'a>> {
    let mut blocks = owner.blocks_of("network");
    let section = Section::open(format!("network of {}", owner.name), blocks.next()?, schema, owner.sink);
    for further in blocks {
        owner.refuse(further.pos, format!("{} has more than one network; keep one", owner.name));
        // Its mistakes are told all the same.
        Section::open(format!("network of {}", owner.name), further, schema, owner.sink);
    }
    Some(section)
}

/// `reserved_ports` is how the API's own type calls those that have a number.
fn ports(section: &Section<'_>, schema: &Schema) -> Vec<Port> {
    let blocks = section.blocks().iter().filter(|block| matches!(block.kind, "port" | "reserved_ports"));
    blocks.filter_map(|block| port(section, block, schema)).collect()
}

fn port(network: &Section<'_>, block: &Expanded<'_>, schema: &Schema) -> Option<Port> {
    let label = block.labels.first()?.clone();
    check_name(network, block.pos, "port", &label, LONGEST_NAME);
    let section = Section::open(format!("port \"{label}\""), block, schema, network.sink);
    let to = section.int::<i32>("to", -1).filter(|to| !matches!(to, -1 | 0));
    let to = to.and_then(|to| {
        let port = u16::try_from(to).ok();
        if port.is_none() {
            section.error(section.pos_of("to"), format!("\"to\" in {} must be at most 65535, not {to}", section.name));
        }
        port
    });
    // What has no effect has been said, and is not read.
    let taken = |name| schema.key(name).is_some_and(|key| key.becomes == super::schema::Use::Taken);
    let host_network = taken("host_network").then(|| section.string("host_network")).flatten();
    let host_network = host_network.filter(|name| !name.is_empty() && name != DEFAULT);
    if let Some(name) = &host_network {
        check_name(&section, section.pos_of("host_network"), "host network", name, LONGEST_NAME);
    }
    Some(Port {
        static_port: section.int("static", 0).filter(|port| *port != 0),
        to,
        host_network: host_network.map(|name| HostNetwork { name, pos: section.pos_of("host_network").clone() }),
        ignore_collision: taken("ignore_collision") && section.bool("ignore_collision") == Some(true),
        pos: block.pos.clone(),
        label,
    })
}

/// That the ports of a group and its tasks can all be had at once.
pub(super) fn check(group: &Section<'_>, network: Option<&Network>, tasks: &[Task]) {
    let own = network.map(|network| (None, network));
    let of_tasks = tasks.iter().filter_map(|task| Some((Some(&*task.name), task.network.as_ref()?)));
    let mut labels: BTreeMap<(Option<&str>, &str), &Pos> = BTreeMap::new();
    // On another network of the host the same number is another port.
    let mut numbers: BTreeMap<(&str, u16), &str> = BTreeMap::new();
    for (task, network) in own.into_iter().chain(of_tasks) {
        for port in &network.ports {
            // Two tasks may call theirs alike: each sees the other's with the task's name.
            let of_group = labels.get(&(None, &*port.label)).filter(|_| task.is_some()).copied();
            if let Some(first) = labels.insert((task, &*port.label), &port.pos).or(of_group) {
                let message = format!("duplicate port \"{}\"; it stands in line {} already", port.label, first.line);
                group.error(&port.pos, message);
            } else if let Some(number) = port.static_port {
                let on = port.host_network.as_ref().map_or(DEFAULT, |network| &network.name);
                let other = numbers.insert((on, number), &port.label);
                if let Some(other) = other.filter(|_| !port.ignore_collision) {
                    let message = format!(
                        "port \"{}\" has the static port {number} of port \"{other}\"; give one of them another",
                        port.label
                    );
                    group.error(&port.pos, message);
                }
            }
        }
    }
}
