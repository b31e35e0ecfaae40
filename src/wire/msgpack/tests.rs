//! Tests of msgpack against what Go's codec writes and reads.

use std::time::{Duration, UNIX_EPOCH};

use proptest::{collection, prelude::*};
use serde::{Deserialize, Serialize};

use super::*;
use crate::spec::collections::BTreeMap;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Sample {
    zone: String,
    active: bool,
    pid: i64,
    mask: u64,
    ratio: f64,
    raw: Bytes,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    names: Vec<String>,
    labels: BTreeMap<String, i32>,
    inner: Option<Box<Sample>>,
    at: GoTime,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|b| [b >> 4, b & 15]).map(|n| char::from_digit(n.into(), 16).unwrap()).collect()
}

/// The forms of single values, each taken from what go-msgpack writes (wire facts; `tests/interop` asks it again).
#[test]
fn a7_single_values_take_gos_forms() {
    let ints =
        [(127i64, "7f"), (128, "d10080"), (255, "d100ff"), (32768, "d200008000"), (1 << 31, "d30000000080000000")];
    for (int, expected) in ints.into_iter().chain([(-32, "e0"), (-33, "d0df"), (-129, "d1ff7f")]) {
        assert_eq!(hex(&to_vec(&int).unwrap()), expected, "{int}");
    }
    for (int, expected) in [(200u64, "ccc8"), (256, "cd0100"), (1 << 40, "cf0000010000000000")] {
        assert_eq!(hex(&to_vec(&int).unwrap()), expected, "{int}");
    }
    assert_eq!(hex(&to_vec(&"a".repeat(40)).unwrap()[..3]), "da0028");
    assert_eq!(hex(&to_vec(&Bytes(vec![0xff, 0])).unwrap()), "a2ff00");
    assert_eq!(hex(&to_vec(&1.5f64).unwrap()), "cb3ff8000000000000");
    assert_eq!(hex(&to_vec(&1.5f32).unwrap()), "ca3fc00000");
    assert_eq!(hex(&to_vec(&(Option::<i32>::None, true)).unwrap()), "92c0c3");
}

#[test]
fn a7_keys_are_sorted_and_the_empty_may_be_left_out() {
    let bytes = to_vec(&Sample { labels: BTreeMap::from([("k".into(), 1)]), ..Sample::default() }).unwrap();
    let at = |key: &str| bytes.windows(key.len()).position(|w| w == key.as_bytes()).unwrap();
    let keys = ["Active", "At", "Inner", "Labels", "Mask", "Pid", "Ratio", "Raw", "Zone"];
    assert!(keys.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{}", hex(&bytes));
    assert_eq!(bytes[0], 0x80 | keys.len() as u8);
}

#[test]
fn a7_times_take_gos_binary_form() {
    let time = GoTime { seconds: 1_700_000_000, nanos: 123_000_000, offset: None };
    assert_eq!(hex(&to_vec(&time).unwrap()), "af010000000edce5e8000754d4c0ffff");
    assert_eq!(hex(&to_vec(&GoTime::ZERO).unwrap()), "af01000000000000000000000000ffff");
    let zoned = GoTime { offset: Some(-(3600 + 30)), ..time };
    let bytes = to_vec(&zoned).unwrap();
    assert_eq!((bytes[0], bytes[1], bytes.len()), (0xb0, 2, 17));
    assert_eq!(from_slice(&bytes), Ok(zoned));
    assert_eq!(from_slice(b"\xc0"), Ok(GoTime::ZERO));
    assert_eq!(time.to_system_time(), Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)));
    let before = UNIX_EPOCH - Duration::from_millis(1500);
    assert_eq!(GoTime::from(before), GoTime { seconds: -2, nanos: 500_000_000, offset: None });
    assert_eq!(GoTime::from(before).to_system_time(), Some(before));
    assert!(to_vec(&GoTime { offset: Some(-60), ..time }).is_err());
    for wrong in [b"\xa0".as_slice(), b"\xae\x01234567890123", b"\xd6\xff\0\0\0\0"] {
        from_slice::<GoTime>(wrong).unwrap_err();
    }
}

/// What Go reads into the same shape.
#[test]
fn a7_reading_is_lenient_where_go_is() {
    let mut bytes = vec![0x8b];
    for (key, value) in [
        ("Active", b"\x01".as_slice()),
        ("At", b"\xc4\x0f\x01\0\0\0\x0e\xdc\xe5\xe8\0\x07\x54\xd4\xc0\xff\xff"),
        ("Inner", b"\x81\xa3Pid\xcc\xc8"),
        ("Labels", b"\x81\xd9\x01k\xd3\0\0\0\0\0\0\0\x07"),
        ("Mask", b"\xd1\x00\xff"),
        ("Names", b"\x93\xc0\xa1a\xc4\x01b"),
        ("Pid", b"\xc0"),
        ("Ratio", b"\x02"),
        ("Raw", b"\xc4\x01\xff"),
        ("Zone", b"\xc0"),
        ("unknown", b"\x82\xa1a\x91\xc7\x01\x05\x00\xa1b\xca\0\0\0\0"),
    ] {
        bytes.extend(to_vec(key).unwrap());
        bytes.extend(value);
    }
    let expected = Sample {
        active: true,
        at: GoTime { seconds: 1_700_000_000, nanos: 123_000_000, offset: None },
        inner: Some(Box::new(Sample { pid: 200, ..Sample::default() })),
        labels: BTreeMap::from([("k".into(), 7)]),
        mask: 255,
        names: vec![String::new(), "a".into(), "b".into()],
        ratio: 2.0,
        raw: Bytes(vec![0xff]),
        ..Sample::default()
    };
    assert_eq!(from_slice(&bytes), Ok(expected));
    assert_eq!(from_slice(b"\xc0"), Ok(Sample::default()));
    assert_eq!(from_slice::<BTreeMap<String, i32>>(b"\xc0"), Ok(BTreeMap::new()));
    assert_eq!(from_slice::<Vec<i32>>(b"\xc0"), Ok(vec![]));
    assert_eq!(from_slice(b"\x81\xa3pid\x05"), Ok(Sample::default()), "keys have a case");
}

#[test]
fn a7_reading_refuses_what_go_refuses() {
    from_slice::<i64>(b"\xcb\x40\0\0\0\0\0\0\0").unwrap_err();
    from_slice::<i64>(b"\xa15").unwrap_err();
    from_slice::<f64>(b"\xa30.1").unwrap_err();
    from_slice::<bool>(b"\x02").unwrap_err();
    from_slice::<u8>(b"\xd1\x01\x00").unwrap_err();
    from_slice::<String>(b"\x05").unwrap_err();
    assert_eq!(from_slice::<Vec<u8>>(b"\xdd\xff\xff\xff\xff\x01"), Err(Error::Truncated));
    assert_eq!(from_slice::<i64>(b"\x01\x02"), Err(Error::Trailing(1)));
    let deep: Vec<u8> = std::iter::repeat_n(b"\x81\xa5Inner".as_slice(), 5000).flatten().copied().collect();
    assert_eq!(from_slice::<Sample>(&deep), Err(Error::TooDeep));
    // Passing over needs no stack.
    let skipped: Vec<u8> = [b"\x81\xa1x".as_slice(), &[0x91; 100_000], b"\xc0"].concat();
    assert_eq!(from_slice(&skipped), Ok(Sample::default()));
}

fn time() -> impl Strategy<Value = GoTime> {
    let zone = prop_oneof![Just(None), (-1_900_000..1_900_000).prop_map(Some)];
    (any::<i64>(), 0..1_000_000_000u32, zone)
        .prop_map(|(seconds, nanos, offset)| GoTime { seconds, nanos, offset })
        .prop_filter("no binary form", |time| time.to_bytes().is_ok())
}

fn sample() -> impl Strategy<Value = Sample> {
    let leaf = (
        (".{0,40}", any::<bool>(), any::<i64>(), any::<u64>()),
        -1e300..1e300,
        collection::vec(any::<u8>(), 0..40),
        collection::vec(".{0,4}", 0..20),
        collection::btree_map(".{0,4}", any::<i32>(), 0..20).prop_map(|labels| labels.into_iter().collect()),
        time(),
    );
    let leaf = leaf.prop_map(|((zone, active, pid, mask), ratio, raw, names, labels, at)| {
        let raw = Bytes(raw);
        Sample { zone, active, pid, mask, ratio, raw, names, labels, inner: None, at }
    });
    leaf.prop_recursive(2, 2, 1, |inner| {
        (inner.clone(), inner).prop_map(|(outer, inner)| Sample { inner: Some(Box::new(inner)), ..outer })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a7_what_is_written_is_read(sample in sample()) {
        prop_assert_eq!(from_slice(&to_vec(&sample).unwrap()), Ok(sample));
    }

    #[test]
    fn a7_no_bytes_are_fatal(bytes in any::<Vec<u8>>()) {
        let _ = from_slice::<Sample>(&bytes);
        let _ = from_slice::<serde_json::Value>(&bytes);
        let _ = crate::wire::cty::decode(&bytes);
    }
}
