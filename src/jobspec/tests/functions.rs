//! Every function with expected values.

use serde_json::{Value as Json, json};

use super::{Given, value_of};

fn check(given: &Given<'_>, table: &[(&str, Json)]) {
    for (expression, expected) in table {
        match value_of(given, expression) {
            Ok(value) => assert_eq!(&value, expected, "{expression}"),
            Err(e) => panic!("{expression}: {e}"),
        }
    }
}

fn check_errors(table: &[(&str, &str)]) {
    for (expression, expected) in table {
        let error = value_of(&Given::default(), expression).expect_err(expression);
        assert_eq!(&error, &format!("job.hcl:5: {expected}"), "{expression}");
    }
}

#[test]
fn numeric() {
    check(
        &Given::default(),
        &[
            ("abs(-5)", json!(5)),
            ("abs(-1.5)", json!(1.5)),
            ("ceil(1.2)", json!(2)),
            ("floor(-1.2)", json!(-2)),
            ("log(16, 2)", json!(4)),
            ("log(8, 2)", json!(3)),
            ("max(1, 3, 2)", json!(3)),
            ("min([4, 2]...)", json!(2)),
            ("parseint(\"ff\", 16)", json!(255)),
            ("parseint(\"-101\", 2)", json!(-5)),
            ("parseint(\"Z\", 62)", json!(61)),
            ("pow(2, 100) / pow(2, 99)", json!(2)),
            ("pow(4, 0.5)", json!(2)),
            ("signum(-3)", json!(-1)),
            ("signum(0)", json!(0)),
            ("signum(0.5)", json!(1)),
        ],
    );
    check_errors(&[
        ("parseint(\"12\", 2)", "parseint: \"12\" is not a whole number in base 2"),
        ("parseint(\"1\", 99)", "parseint: the base must be 2 to 62"),
        ("log(-1, 2)", "log: the result is not a number"),
    ]);
}

#[test]
fn string() {
    check(
        &Given::default(),
        &[
            ("chomp(\"a\\r\\n\\n\")", json!("a")),
            ("format(\"%s is %d and %05.1f%%\", \"x\", 3, 2.25)", json!("x is 3 and 002.2%")),
            (
                "format(\"%-4s|%4s|%q|%v|%t\", \"a\", \"b\", \"c\\\"\", [1, \"d\"], true)",
                json!("a   |   b|\"c\\\"\"|[1,\"d\"]|true"),
            ),
            ("format(\"%x %X %o %b %+d %03d\", 255, 255, 8, 5, 7, 7)", json!("ff FF 10 101 +7 007")),
            ("format(\"%[2]s %[1]s\", \"a\", \"b\")", json!("b a")),
            ("format(\"%e %g %g %.3s\", 1234.5, 0.5, 1e21, \"abcdef\")", json!("1.234500e+03 0.5 1e+21 abc")),
            ("formatlist(\"%s-%d\", [\"a\", \"b\"], 1)", json!(["a-1", "b-1"])),
            ("indent(2, \"a\\nb\")", json!("a\n  b")),
            ("join(\"-\", [\"a\", \"b\"], [\"c\"])", json!("a-b-c")),
            ("lower(\"ÄB\")", json!("äb")),
            ("upper(\"äb\")", json!("ÄB")),
            ("regex_replace(\"a1b22\", \"[0-9]+\", \"<$0>\")", json!("a<1>b<22>")),
            ("regex_replace(\"john smith\", \"(?P<f>\\\\w+) (\\\\w+)\", \"$2 $${f}\")", json!("smith john")),
            ("replace(\"1 + 2\", \"+\", \"-\")", json!("1 - 2")),
            ("reverse(\"abc\")", json!("cba")),
            ("strrev(\"abc\")", json!("cba")),
            ("split(\",\", \"a,b,\")", json!(["a", "b", ""])),
            ("strlen(\"äöü\")", json!(3)),
            ("substr(\"hello\", 1, 3)", json!("ell")),
            ("substr(\"hello\", -3, -1)", json!("llo")),
            ("substr(\"hello\", 9, 1)", json!("")),
            ("title(\"hello big world\")", json!("Hello Big World")),
            ("trim(\"?!hi?!\", \"!?\")", json!("hi")),
            ("trimprefix(\"helloworld\", \"hello\")", json!("world")),
            ("trimsuffix(\"helloworld\", \"world\")", json!("hello")),
            ("trimspace(\"  x\\n\")", json!("x")),
        ],
    );
    check_errors(&[
        ("reverse([1])", "reverse: argument 1 must be a string, not list"),
        ("format(\"%d\", \"x\")", "format: %d cannot show a string"),
        ("format(\"%s\")", "format: there is no argument 1 for %s"),
        ("format(\"%s\", 1, 2)", "format: the pattern uses 1 of 2 arguments"),
        ("format(\"%99999d\", 1)", "format: a width is at most 1024"),
        ("indent(100000, \"\")", "indent: the indent must be 0 to 1000"),
        ("formatlist(\"%s%s\", [1], [1, 2])", "formatlist: the lists have different lengths"),
    ]);
}

#[test]
fn collection() {
    check(
        &Given::default(),
        &[
            ("chunklist([1, 2, 3], 2)", json!([[1, 2], [3]])),
            ("coalesce(null, \"\", \"x\")", json!("")),
            ("coalesce(null, \"x\", \"y\")", json!("x")),
            ("coalescelist([], [1])", json!([1])),
            ("compact([\"a\", \"\", \"b\"])", json!(["a", "b"])),
            ("concat([1], [2, 3])", json!([1, 2, 3])),
            ("contains([1, 2], 2)", json!(true)),
            ("distinct([1, 2, 1])", json!([1, 2])),
            ("element([1, 2, 3], 4)", json!(2)),
            ("element([1, 2, 3], -1)", json!(3)),
            ("flatten([1, [2, [3]], []])", json!([1, 2, 3])),
            ("index([\"a\", \"b\"], 1)", json!("b")),
            ("keys({ b = 1, a = 2 })", json!(["a", "b"])),
            ("length({ a = 1 })", json!(1)),
            ("lookup({ a = 1 }, \"b\", 7)", json!(7)),
            ("lookup({ a = 1 }, \"a\", 7)", json!(1)),
            ("values(merge({ a = 1, b = 1 }, { b = 2 }))", json!([1, 2])),
            ("range(3)", json!([0, 1, 2])),
            ("range(5, 1, -2)", json!([5, 3])),
            ("range(2, 0)", json!([2, 1])),
            ("setintersection([1, 2], [2, 3])", json!([2])),
            ("setproduct([1, 2], [\"a\"])", json!([[1, "a"], [2, "a"]])),
            ("setunion([2, 1], [2, 3])", json!([1, 2, 3])),
            ("slice([1, 2, 3], 1, 3)", json!([2, 3])),
            ("sort([\"b\", \"a\"])", json!(["a", "b"])),
            ("values(zipmap([\"b\", \"a\"], [1, 2]))", json!([2, 1])),
        ],
    );
    check_errors(&[
        ("range(2000)", "range: the range has more than 1024 elements"),
        ("range(0, 5, -1)", "range: the step must lead from the start to the end"),
        ("range(0, 5, 0)", "range: the step must lead from the start to the end"),
        ("element([], 0)", "element: the list is empty"),
        ("slice([1], 0, 2)", "slice: the bounds lie outside of the list of 1"),
        ("slice([1], 1, 0)", "slice: the bounds lie outside of the list of 1"),
        ("length(\"abc\")", "length: argument 1 must be a list, set or map; strlen counts characters"),
        ("zipmap([\"a\"], [])", "zipmap: there are 1 keys for 0 values"),
        ("lookup({}, \"x\")", "lookup: there is no key \"x\" and no default; give a third argument"),
    ]);
}

#[test]
fn encoding() {
    check(
        &Given::default(),
        &[
            ("base64encode(\"hällo\")", json!("aMOkbGxv")),
            ("base64decode(\"aMOkbGxv\")", json!("hällo")),
            ("[for r in csvdecode(\"a,b\\n1,2\\n3,4\\n\") : \"${r.a}${r.b}\"]", json!(["12", "34"])),
            ("jsondecode(\"{\\\"a\\\": [1, null, true]}\").a", json!([1, null, true])),
            (
                "jsonencode({ b = [1, 2.5, null], a = \"<x>&\" })",
                json!("{\"a\":\"\\u003cx\\u003e\\u0026\",\"b\":[1,2.5,null]}"),
            ),
            ("urlencode(\"a b&c/ä~\")", json!("a+b%26c%2F%C3%A4~")),
            ("yamldecode(\"a: 1\\nb: [x, true, ~]\\nc: {d: 1.5}\\n\").b", json!(["x", true, null])),
            ("yamldecode(\"a: &x 1\\nb: *x\\n\").b", json!(1)),
            (
                "yamlencode({ a = 1, b = [\"x\", { c = true, d = [] }], e = { f = null } })",
                json!("\"a\": 1\n\"b\":\n- \"x\"\n- \"c\": true\n  \"d\": []\n\"e\":\n  \"f\": null\n"),
            ),
            ("yamlencode(\"x\")", json!("\"x\"\n")),
        ],
    );
    let deep = format!("yamldecode(\"{}\")", "[".repeat(5000));
    check_errors(&[
        ("base64decode(\"*\")", "base64decode: invalid base64: Invalid symbol 42, offset 0."),
        ("jsondecode(\"{\")", "jsondecode: syntax error: expected a key in double quotes"),
        (&deep, "yamldecode: the text nests deeper than 64 levels"),
    ]);
}

#[test]
fn what_yamlencode_writes_yamldecode_reads() {
    let data = "{ a = [[1, 2], [], [{ b = { c = [\"x: y\", \"- z\"] } }]], \"k: 1\" = \"\\n#\" }";
    let given = Given::default();
    let round = value_of(&given, &format!("yamldecode(yamlencode({data})) == {data}")).unwrap();
    assert_eq!(round, json!(true));
}

#[test]
fn date() {
    check(
        &Given::default(),
        &[
            ("formatdate(\"YYYY-MM-DD'T'hh:mm:ssZ\", \"2018-01-02T23:12:01Z\")", json!("2018-01-02T23:12:01Z")),
            (
                "formatdate(\"EEEE, DD-MMM-YY hh:mm:ss ZZZ\", \"2018-01-02T23:12:01Z\")",
                json!("Tuesday, 02-Jan-18 23:12:01 UTC"),
            ),
            (
                "formatdate(\"EEE, D MMMM H:mm aa ZZZZZ\", \"2018-01-02T23:12:01-08:00\")",
                json!("Tue, 2 January 11:12 pm -08:00"),
            ),
            ("formatdate(\"'it''s' h 'o''clock'\", \"2018-01-02T07:00:00Z\")", json!("it's 7 o'clock")),
            ("timeadd(\"2017-11-22T00:00:00Z\", \"10m\")", json!("2017-11-22T00:10:00Z")),
            ("timeadd(\"2024-02-28T23:59:59.5Z\", \"1h0.5s\")", json!("2024-02-29T01:00:00Z")),
            ("timeadd(\"2000-03-01T00:00:00+02:00\", \"-1s\")", json!("2000-02-29T23:59:59+02:00")),
        ],
    );
    check_errors(&[
        (
            "timeadd(\"2023-02-29T00:00:00Z\", \"1s\")",
            "timeadd: \"2023-02-29T00:00:00Z\" is not a time such as 2006-01-02T15:04:05Z",
        ),
        (
            "formatdate(\"QQ\", \"2018-01-02T23:12:01Z\")",
            "formatdate: \"QQ\" stands for no part of a time; put text in single quotes",
        ),
    ]);
}

#[test]
fn hashes_and_ids() {
    check(
        &Given::default(),
        &[
            ("md5(\"hello\")", json!("5d41402abc4b2a76b9719d911017c592")),
            ("sha1(\"hello\")", json!("aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d")),
            ("sha256(\"hello\")", json!("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")),
            ("substr(sha512(\"hello\"), 0, 16)", json!("9b71d224bd62f378")),
            ("uuidv5(\"dns\", \"www.terraform.io\")", json!("a5008fae-b28c-5ba5-96cd-82b4c53552d6")),
            ("strlen(uuidv4())", json!(36)),
            ("uuidv4() == uuidv4()", json!(false)),
            ("substr(bcrypt(\"hello\", 4), 0, 7)", json!("$2a$04$")),
            ("strlen(bcrypt(\"hello\", 4))", json!(60)),
        ],
    );
    check_errors(&[
        (
            "rsadecrypt(\"a\", \"b\")",
            "rsadecrypt: not supported by agentbin run; decrypt the value first and pass it with --var",
        ),
        ("uuidv5(\"x\", \"y\")", "uuidv5: the namespace must be dns, url, oid, x500 or a UUID, not \"x\""),
    ]);
}

#[test]
fn net() {
    check(
        &Given::default(),
        &[
            ("cidrhost(\"10.12.112.0/20\", 16)", json!("10.12.112.16")),
            ("cidrhost(\"10.12.112.0/20\", -1)", json!("10.12.127.255")),
            ("cidrhost(\"fd00:fd12:3456:7890:00a2::/72\", 34)", json!("fd00:fd12:3456:7890::22")),
            ("cidrnetmask(\"172.16.0.0/12\")", json!("255.240.0.0")),
            ("cidrsubnet(\"172.16.0.0/12\", 4, 2)", json!("172.18.0.0/16")),
            ("cidrsubnet(\"fd00:fd12:3456:7890::/56\", 16, 162)", json!("fd00:fd12:3456:7800:a200::/72")),
            (
                "cidrsubnets(\"10.1.0.0/16\", 4, 4, 8, 4)",
                json!(["10.1.0.0/20", "10.1.16.0/20", "10.1.32.0/24", "10.1.48.0/20"]),
            ),
            ("cidrsubnets(\"::/0\", 1, 1)", json!(["::/1", "8000::/1"])),
        ],
    );
    check_errors(&[
        ("cidrhost(\"10.0.0.0/30\", 4)", "cidrhost: the block has no host number 4"),
        ("cidrsubnet(\"10.0.0.0/30\", 3, 0)", "cidrsubnet: 3 more bits do not fit after a prefix of 30"),
        ("cidrsubnet(\"10.0.0.0/8\", 1, 2)", "cidrsubnet: 1 bits cannot hold the number 2"),
        ("cidrsubnets(\"10.0.0.0/31\", 1, 1, 1)", "cidrsubnets: the block has no room for subnet 3"),
        ("cidrsubnets(\"::/0\", 1, 1, 1)", "cidrsubnets: the block has no room for subnet 3"),
        ("cidrnetmask(\"::/8\")", "cidrnetmask: only IPv4 blocks have a netmask"),
        ("cidrhost(\"10.0.0.0\", 1)", "cidrhost: \"10.0.0.0\" is not an address block such as 10.0.0.0/8"),
    ]);
}

/// Upstream refuses these on servers (`FileOperators`); a job file on this machine may read what stands beside it.
#[test]
fn filesystem() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("a.txt"), "hällo").unwrap();
    std::fs::write(dir.path().join("sub/b.txt"), "b").unwrap();
    std::fs::write(dir.path().join("sub/c.bin"), [0xff]).unwrap();
    let given = Given::default().dir(dir.path());
    check(
        &given,
        &[
            ("file(\"a.txt\")", json!("hällo")),
            ("file(\"./sub/../a.txt\")", json!("hällo")),
            ("filebase64(\"sub/c.bin\")", json!("/w==")),
            ("fileexists(\"a.txt\")", json!(true)),
            ("fileexists(\"no.txt\")", json!(false)),
            ("fileset(\".\", \"**/*.txt\")", json!(["a.txt", "sub/b.txt"])),
            ("fileset(\".\", \"*.{txt,bin}\")", json!(["a.txt"])),
            ("fileset(\"sub\", \"?.[bt]*\")", json!(["b.txt", "c.bin"])),
            ("abspath(\"sub/../x\")", json!(dir.path().join("x").to_str().unwrap())),
            ("basename(\"/a/b.txt\")", json!("b.txt")),
            ("dirname(\"/a/b.txt\")", json!("/a")),
            ("dirname(\"b.txt\")", json!(".")),
            ("pathexpand(\"/x\")", json!("/x")),
        ],
    );
    let error = |e: &str| value_of(&given, e).unwrap_err();
    assert!(error("file(\"no.txt\")").contains("no.txt: No such file"), "{}", error("file(\"no.txt\")"));
    assert!(error("file(\"sub/c.bin\")").ends_with("file: the file is not UTF-8 text; use filebase64"));
    assert!(error("fileexists(\"sub\")").ends_with("sub is not a file"));
}
