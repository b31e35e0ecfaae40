//! A7: our msgpack beside the real encoders, in both directions (`tests/interop/golden`).

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use agentbin::driver::state::{
    GoAllocatedDevice, GoAllocatedResources, GoCpu, GoDevice, GoDns, GoDriverState, GoHosts, GoLinuxResources,
    GoMemory, GoMount, GoNetwork, GoNetworkIsolation, GoPort, GoPortMapping, GoResources, GoTaskConfig,
};
use agentbin::plugin::ReattachConfig;
use agentbin::spec::collections::BTreeMap;
use agentbin::wire::cty::{self, Number, Type, Value};
use agentbin::wire::msgpack::{self, Bytes, GoTime};
use golden::{ask, bytes, hex};
use serde::{Deserialize, Serialize};

#[path = "support/golden.rs"]
mod golden;

fn build() -> Option<&'static Path> {
    static BINARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    BINARY.get_or_init(|| golden::build("interop_golden")).as_deref()
}

#[derive(Serialize, Deserialize)]
struct Sample {
    name: String,
    dialect: String,
    hex: String,
}

fn samples(binary: &Path, dialect: &str) -> BTreeMap<String, Vec<u8>> {
    let all: Vec<Sample> = serde_json::from_str(&ask(binary, "write", "")).unwrap();
    all.into_iter().filter(|s| s.dialect == dialect).map(|s| (s.name, bytes(&s.hex))).collect()
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Scalars {
    ints: Vec<i64>,
    uints: Vec<u64>,
    floats: Vec<f64>,
    float32s: Vec<f32>,
    bools: Vec<bool>,
    texts: Vec<String>,
    raw: Bytes,
    empty: Option<Bytes>,
    times: Vec<GoTime>,
    nil: Option<i64>,
    nested: BTreeMap<String, BTreeMap<String, i64>>,
}

fn scalars() -> Scalars {
    let (max32, umax32) = (i64::from(i32::MAX), i64::from(u32::MAX));
    let mut ints =
        vec![0, 1, 127, 128, 129, 255, 256, 32767, 32768, 65535, 65536, max32, max32 + 1, umax32, umax32 + 1];
    ints.extend([i64::MAX, -1, -31, -32, -33, -128, -129, -32768, -32769, i64::from(i32::MIN), i64::MIN]);
    let mut texts = vec![String::new(), "a".to_owned()];
    texts.extend(
        [('b', 31), ('c', 32), ('d', 255), ('e', 256), ('f', 65535), ('g', 65536)]
            .map(|(c, n)| c.to_string().repeat(n)),
    );
    texts.push("ä\"\0".to_owned());
    Scalars {
        ints,
        uints: vec![0, 127, 128, 255, 256, 65535, 65536, umax32 as u64, umax32 as u64 + 1, u64::MAX],
        floats: vec![0.0, 1.0, -1.5, 0.1, f64::MAX, f64::INFINITY],
        float32s: vec![0.0, 1.5, 0.1],
        bools: vec![true, false],
        texts,
        raw: Bytes(vec![0xff, 0x00, 0xc1]),
        empty: None,
        times: vec![
            GoTime::ZERO,
            GoTime { seconds: 1_700_000_000, nanos: 123_456_789, offset: None },
            GoTime { seconds: -1, nanos: 999_999_999, offset: Some(2 * 3600 + 1) },
            GoTime { seconds: 4_102_444_800, nanos: 0, offset: Some(5 * 3600) },
        ],
        nil: None,
        nested: BTreeMap::from([("k".to_owned(), BTreeMap::from([("n".to_owned(), 200)]))]),
    }
}

fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|s| (*s).to_owned()).collect()
}

fn pair(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.to_owned())])
}

fn state() -> GoDriverState {
    let dns = |servers: &[&str], searches: &[&str]| {
        Some(GoDns { servers: strings(servers), searches: strings(searches), options: vec![] })
    };
    let network = GoNetwork {
        mode: "bridge".into(),
        device: "eth0".into(),
        ip: "10.0.0.1".into(),
        mbits: 200,
        dns: dns(&["1.1.1.1"], &[]),
        reserved_ports: vec![GoPort { label: "admin".into(), value: 8080, ..GoPort::default() }],
        dynamic_ports: vec![GoPort {
            label: "http".into(),
            value: 25000,
            to: -1,
            host_network: "public".into(),
            ..GoPort::default()
        }],
        ..GoNetwork::default()
    };
    let resources = GoResources {
        nomad_resources: Some(GoAllocatedResources {
            cpu: GoCpu { cpu_shares: 500, reserved_cores: vec![0, 1, 300] },
            memory: GoMemory { memory_mb: 256, memory_max_mb: -1 },
            networks: vec![network],
            devices: vec![GoAllocatedDevice {
                vendor: "nvidia".into(),
                r#type: "gpu".into(),
                name: "t4".into(),
                device_ids: strings(&["0"]),
            }],
        }),
        linux_resources: Some(GoLinuxResources {
            cpu_period: 100_000,
            cpu_quota: 50_000,
            cpu_shares: 500,
            memory_limit_bytes: 268_435_456,
            oom_score_adj: -33,
            cpuset_cpus: "0-1".into(),
            cpuset_cgroup_path: "/sys/fs/cgroup/nomad.slice/x.scope".into(),
            percent_ticks: 0.125,
        }),
        ports: Some(vec![GoPortMapping {
            label: "http".into(),
            value: 25000,
            to: 80,
            host_ip: "10.0.0.1".into(),
            ..GoPortMapping::default()
        }]),
    };
    let task = GoTaskConfig {
        id: "7c0f1a2b-0000-0000-0000-000000000001/web/0a1b2c3d".into(),
        job_name: "example".into(),
        job_id: "example".into(),
        task_group_name: "cache".into(),
        parent_job_id: "parent".into(),
        name: "web".into(),
        namespace: "default".into(),
        node_name: "node-1".into(),
        node_id: "1f2e3d4c-0000-0000-0000-000000000002".into(),
        env: pair("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        device_env: pair("GPU", "0"),
        resources: Some(resources),
        devices: vec![GoDevice {
            task_path: "/dev/fuse".into(),
            host_path: "/dev/fuse".into(),
            permissions: "rwm".into(),
        }],
        mounts: vec![GoMount {
            request_name: "data".into(),
            task_path: "/data".into(),
            host_path: "/srv/data".into(),
            readonly: true,
            propagation_mode: "private".into(),
            selinux_label: "z".into(),
        }],
        user: "nobody".into(),
        alloc_dir: "/var/nomad/alloc/7c0f1a2b".into(),
        stdout_path: "/var/nomad/alloc/7c0f1a2b/alloc/logs/.web.stdout.fifo".into(),
        stderr_path: "/dev/null".into(),
        alloc_id: "7c0f1a2b-0000-0000-0000-000000000001".into(),
        network_isolation: Some(GoNetworkIsolation {
            mode: "group".into(),
            path: "/var/run/netns/x".into(),
            labels: pair("k", "v"),
            hosts_config: Some(GoHosts { hostname: "h".into(), address: "10.0.0.2".into() }),
        }),
        dns: dns(&["8.8.8.8"], &["local"]),
    };
    GoDriverState {
        agentbin: None,
        reattach_config: Some(ReattachConfig {
            protocol: "grpc".into(),
            network: "unix".into(),
            addr: "/tmp/plugin123".into(),
            pid: 4242,
        }),
        task_config: Some(task),
        pid: 70000,
        started_at: GoTime { seconds: 1_795_276_800, nanos: 123_000_000, offset: Some(-(5 * 3600 + 30 * 60)) },
    }
}

/// Go's bytes are read to the same value, and the value is written to the same bytes.
fn both_ways<T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(
    from_go: &BTreeMap<String, Vec<u8>>,
    name: &str,
    value: &T,
) -> Sample {
    let written = msgpack::to_vec(value).unwrap();
    assert_eq!(hex(&written), hex(&from_go[name]), "{name}");
    assert_eq!(msgpack::from_slice::<T>(&from_go[name]).as_ref(), Ok(value), "{name}");
    Sample { name: name.to_owned(), dialect: "struct".to_owned(), hex: hex(&written) }
}

#[test]
fn a7_structs_are_read_and_written_as_by_go_msgpack() {
    let Some(binary) = build() else { return };
    let from_go = samples(binary, "struct");
    let ours = [
        both_ways(&from_go, "scalars", &scalars()),
        both_ways(&from_go, "state", &state()),
        both_ways(&from_go, "state_empty", &GoDriverState::default()),
    ];
    assert_eq!(ours.len(), from_go.len(), "{:?}", from_go.keys());
    ask(binary, "read", &serde_json::to_string(&ours).unwrap());
}

const NUMBERS: &str = "0 127 128 255 256 65535 65536 4294967295 4294967296 9223372036854775807 9223372036854775808 \
    18446744073709551615 18446744073709551616 -1 -32 -33 -128 -129 -9223372036854775808 -9223372036854775809 0.5 -0.25 \
    0.1 1e3 1e-7 1.5e1 123456789012345678901234567890 1e40 3.14159";

fn map(pairs: &[(&str, Value)]) -> Value {
    Value::Map(pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect())
}

fn dynamic(kind: Type, value: Value) -> Value {
    Value::Dynamic(kind, Box::new(value))
}

#[test]
fn a7_values_are_written_as_by_go_cty() {
    let Some(binary) = build() else { return };
    let int = |n: i64| Value::Number(n.into());
    let text = |t: &str| Value::String(t.to_owned());
    let object =
        |pairs: &[(&str, Type)]| Type::Object(pairs.iter().map(|(k, t)| ((*k).to_owned(), t.clone())).collect());
    let ours = [
        ("texts", Value::List([0, 1, 31, 32, 255, 256, 65535, 65536].map(|n| Value::String("x".repeat(n))).to_vec())),
        (
            "numbers",
            Value::List(NUMBERS.split_whitespace().map(|n| Value::Number(Number::parse(n).unwrap())).collect()),
        ),
        ("bools", Value::List(vec![Value::Bool(true), Value::Bool(false), Value::Null])),
        ("many", Value::List((0..17).map(int).collect())),
        ("set", Value::List(vec![text("a"), text("b"), text("ä")])),
        ("map", map(&[("b", int(1)), ("a", int(-1))])),
        ("object", map(&[("z", map(&[])), ("a", Value::Null), ("list", Value::List(vec![]))])),
        (
            "any",
            map(&[
                ("text", dynamic(Type::String, text("x"))),
                ("number", dynamic(Type::Number, int(200))),
                ("none", Value::Null),
                (
                    "object",
                    dynamic(
                        object(&[("b", Type::List(Box::new(Type::Bool))), ("a", Type::Tuple(vec![]))]),
                        map(&[("b", Value::List(vec![Value::Bool(true)])), ("a", Value::List(vec![]))]),
                    ),
                ),
            ]),
        ),
    ];
    let from_go = samples(binary, "cty");
    assert_eq!(ours.len(), from_go.len(), "{:?}", from_go.keys());
    for (name, value) in ours {
        assert_eq!(hex(&cty::encode(&value)), hex(&from_go[name]), "{name}");
        assert_eq!(cty::decode(&from_go[name]), Ok(value.to_json()), "{name}");
    }
}
