//! What a rendering asked for, with a digest of each answer: a template is rendered anew only when one of them changes, because what
//! it renders to may differ each time (`timestamp`, functions that make keys).

use std::fmt::{Debug, Write as _};

use sha2::{Digest as _, Sha256};

use super::host::{Host, Service};
use crate::spec::collections::{BTreeMap, BTreeSet};

type Digest = [u8; 32];

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ask {
    File,
    Key,
    Tree,
    Secret,
    Secrets,
    Variable,
    Variables,
    Service,
    Services,
}

/// What a rendering asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Digest of the template's text.
    source: Digest,
    /// Digests of the answers, by what was asked for under which name.
    answers: BTreeMap<(Ask, String), Digest>,
}

impl Asked {
    pub(super) fn of(source: &[u8]) -> Asked {
        Asked { source: Sha256::digest(source).into(), answers: BTreeMap::new() }
    }

    /// Notes an answer; `false` if the same was asked before.
    pub(super) fn note(&mut self, ask: Ask, name: &str, answer: &dyn Debug) -> bool {
        self.answers.insert((ask, name.to_owned()), digest(answer)).is_none()
    }

    /// How many different things were asked for.
    pub fn count(&self) -> usize {
        self.answers.len()
    }

    /// Whether the template is `source`, and `host` answers all of it as before.
    pub fn is_still(&self, source: &[u8], host: &dyn Host) -> bool {
        self.source == Digest::from(Sha256::digest(source))
            && self.answers.iter().all(|((ask, name), answer)| ask.digest(name, host) == *answer)
    }

    /// Digest of the template and of all answers.
    pub fn digest(&self) -> String {
        let mut text = String::new();
        for byte in digest(self) {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

impl Ask {
    /// The digest of what `host` answers now.
    fn digest(self, name: &str, host: &dyn Host) -> Digest {
        match self {
            Ask::File => digest(&file(&host.file(name.as_bytes()))),
            Ask::Key => digest(&host.key(name)),
            Ask::Tree => digest(&host.tree(name)),
            Ask::Secret => digest(&host.secret(name)),
            Ask::Secrets => digest(&host.secrets(name)),
            Ask::Variable => digest(&host.variable(name)),
            Ask::Variables => digest(&host.variables(name)),
            Ask::Service => {
                let (query, states) = name.split_once('\n').unwrap_or((name, ""));
                digest(&matching(host.services(), query, states))
            }
            Ask::Services => digest(&catalog(host.services())),
        }
    }
}

/// Digest of a value as Rust shows it, which has all of it.
fn digest(answer: &dyn Debug) -> Digest {
    struct Hash(Sha256);
    impl std::fmt::Write for Hash {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.update(text);
            Ok(())
        }
    }
    let mut hash = Hash(Sha256::new());
    let _ = write!(hash, "{answer:?}");
    hash.0.finalize().into()
}

/// A file's content in 32 bytes: byte by byte it would take long to show.
pub(super) fn file(answer: &Result<Vec<u8>, String>) -> Result<Digest, &String> {
    answer.as_ref().map(|bytes| Sha256::digest(bytes).into())
}

/// The states of instances that can be used: not critical, and no check of theirs is still to pass for the first time.
pub(super) const WORKING: &str = "!";

/// The instances of a service in these states: its tag may stand before the name, a datacenter or filter behind it.
pub(super) fn matching(all: Vec<Service>, query: &str, states: &str) -> Vec<Service> {
    let query = query.split(['@', '?', '|']).next().unwrap_or_default();
    let (tag, name) = query.rsplit_once('.').map_or((None, query), |(tag, name)| (Some(tag), name));
    let named = |s: &Service, name: &str, tag: Option<&str>| {
        s.name == name && tag.is_none_or(|tag| s.tags.iter().any(|t| t == tag))
    };
    let mut found: Vec<Service> = all.iter().filter(|s| named(s, query, None)).cloned().collect();
    if found.is_empty() {
        found = all.into_iter().filter(|s| named(s, name, tag)).collect();
    }
    found.retain(|service| {
        let status = service.status.as_str();
        match states {
            WORKING => !matches!(status, "critical" | "pending"),
            "" => matches!(status, "" | "passing"),
            "any" => true,
            states => {
                states.split(',').any(|state| state.trim() == status || (status.is_empty() && state == "passing"))
            }
        }
    });
    if states == WORKING {
        // Which of these it has is not shown.
        for service in &mut found {
            service.status.clear();
        }
    }
    found
}

/// The names of all services, with their tags.
pub(super) fn catalog(all: Vec<Service>) -> BTreeMap<String, BTreeSet<String>> {
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for service in all {
        names.entry(service.name).or_default().extend(service.tags);
    }
    names
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Mutex, PoisonError};

    use crate::spec::json::json;
    use serde_json::Value as Json;

    use super::super::host::{Found, Tree, Variable};
    use super::super::{Limits, Template};
    use super::*;

    /// A host that answers each question by its number, which a test can raise.
    pub(in crate::template) struct Counting(Mutex<Cell<[u32; 10]>>);

    impl Counting {
        pub(in crate::template) fn new() -> Counting {
            Counting(Mutex::new(Cell::new([0; 10])))
        }

        fn get(&self, ask: usize) -> u32 {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get()[ask]
        }

        fn change(&self, ask: usize) {
            let cell = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let mut numbers = cell.get();
            numbers[ask] += 1;
            cell.set(numbers);
        }
    }

    impl Host for Counting {
        fn env(&self, _: &str) -> Option<Vec<u8>> {
            None
        }
        fn file(&self, _: &[u8]) -> Result<Vec<u8>, String> {
            Ok(vec![self.get(0) as u8])
        }
        fn key(&self, _: &str) -> Found<String> {
            if self.get(1) == 7 { Found::Missing } else { Found::Here(self.get(1).to_string()) }
        }
        fn tree(&self, _: &str) -> Tree {
            vec![("k".to_owned(), self.get(2).to_string())]
        }
        fn secret(&self, _: &str) -> Found<Json> {
            Found::Here(json!({ "n": self.get(3) }))
        }
        fn secrets(&self, _: &str) -> Vec<String> {
            vec![self.get(4).to_string()]
        }
        fn variable(&self, _: &str) -> Found<Variable> {
            Found::Here(BTreeMap::from([("n".to_owned(), self.get(5).to_string())]))
        }
        fn variables(&self, _: &str) -> Vec<String> {
            vec![self.get(6).to_string()]
        }
        fn services(&self) -> Vec<Service> {
            let named = |name: &str, n: usize| Service {
                name: name.to_owned(),
                id: format!("{name}-{}", self.get(n)),
                port: self.get(n) as u16,
                tags: vec!["t".to_owned()],
                ..Service::default()
            };
            vec![named("web", 7), named(&format!("db{}", self.get(8)), 8)]
        }
        fn now(&self) -> (i64, u32) {
            (i64::from(self.get(9)), 0)
        }
    }

    fn rendered(text: &str, host: &Counting) -> super::super::Rendered {
        let cancel = AtomicBool::new(false);
        let template = Template::parse(text, "{{", "}}", &cancel).unwrap();
        template.render(host, true, Limits::default(), &cancel).unwrap()
    }

    #[test]
    fn j4_each_question_is_asked_again_and_no_other() {
        // The number of the answer that each depends on.
        let cases: &[(usize, &str)] = &[
            (0, r#"{{ file "f" }}"#),
            (1, r#"{{ key "k" }}"#),
            (1, r#"{{ keyExists "k" }}"#),
            (1, r#"{{ keyOrDefault "k" "x" }}"#),
            (2, r#"{{ range ls "p" }}{{ .Value }}{{ end }}"#),
            (2, r#"{{ range safeTree "p" }}{{ .Value }}{{ end }}"#),
            (3, r#"{{ with secret "s" }}{{ .Data.n }}{{ end }}"#),
            (4, r#"{{ secrets "s" }}"#),
            (5, r#"{{ with nomadVar "v" }}{{ .n }}{{ end }}"#),
            (5, r#"{{ nomadVarExists "v" }}"#),
            (6, "{{ nomadVarList }}"),
            (7, r#"{{ range service "web" }}{{ .Port }}{{ end }}"#),
            (7, r#"{{ range nomadService "t.web" }}{{ .Port }}{{ end }}"#),
            (7, r#"{{ range nomadService 1 "key" "web" }}{{ .Port }}{{ end }}"#),
            (8, "{{ range services }}{{ .Name }}{{ end }}"),
        ];
        for (number, text) in cases {
            let host = Counting::new();
            let asked = rendered(text, &host).asked;
            assert_eq!(asked.count(), 1, "{text}");
            for other in (0..10).filter(|n| n != number) {
                host.change(other);
                assert!(asked.is_still(text.as_bytes(), &host), "{text} does not depend on {other}");
                assert_eq!(rendered(text, &host).asked.digest(), asked.digest(), "{text}");
            }
            host.change(*number);
            assert!(!asked.is_still(text.as_bytes(), &host), "{text}");
            let again = rendered(text, &host).asked;
            assert_ne!(again.digest(), asked.digest(), "{text}");
            assert!(again.is_still(text.as_bytes(), &host), "{text}");
            assert!(!again.is_still(b"another text", &host));
        }
        // Of the states of an instance only those that are seen count.
        let instance = |status: &str| {
            let service = Service { name: "web".to_owned(), status: status.to_owned(), ..Service::default() };
            [WORKING, "", "any", "passing, warning"].map(|states| matching(vec![service.clone()], "web", states))
        };
        let (passing, warning, critical) = (instance("passing"), instance("warning"), instance("critical"));
        assert_eq!(passing.each_ref().map(Vec::len), [1, 1, 1, 1]);
        assert_eq!(warning.each_ref().map(Vec::len), [1, 0, 1, 1]);
        assert_eq!(critical.each_ref().map(Vec::len), [0, 0, 1, 0]);
        assert!(passing[0] == warning[0] && passing[2] != warning[2] && instance("pending")[0] == critical[0]);
        // The time is nothing that is waited for.
        let host = Counting::new();
        let asked = rendered("{{ timestamp \"unix\" }}{{ env \"A\" }}", &host).asked;
        host.change(9);
        assert_eq!((asked.count(), asked.is_still(b"{{ timestamp \"unix\" }}{{ env \"A\" }}", &host)), (0, true));
    }
}
