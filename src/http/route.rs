//! Which route a raw path takes.
//!
//! Ids may hold slashes, written as `/` or as `%2F`: a pattern says where one may (`{id*}`), and the route that says most of a
//! path in its own words wins, so that `/v1/job/a/b/allocations` asks for the allocations of the job `a/b`. This is the only place
//! where a path is cut.

/// What a place of a pattern takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segment {
    /// This word.
    Word(&'static str),
    /// One segment, which is not empty.
    One,
    /// One or more segments, as one text.
    Some,
}

/// A path with places for ids, such as `/v1/job/{id*}/allocations`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    segments: Vec<Segment>,
    words: usize,
}

impl Pattern {
    /// Reads a pattern: words, `{name}` for one segment and `{name*}` for one or more. The names are for people.
    #[must_use]
    pub fn new(text: &'static str) -> Pattern {
        let segment = |part: &'static str| match part {
            _ if part.starts_with('{') && part.ends_with("*}") => Segment::Some,
            _ if part.starts_with('{') => Segment::One,
            _ => Segment::Word(part),
        };
        let segments: Vec<_> = text.trim_start_matches('/').split('/').map(segment).collect();
        let words = segments.iter().filter(|s| matches!(s, Segment::Word(_))).count();
        Pattern { segments, words }
    }

    /// The ids in a raw path, decoded; `None` when it is another path.
    #[must_use]
    pub fn ids(&self, path: &str) -> Option<Vec<String>> {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let mut taken = Vec::new();
        take(&self.segments, &parts, &mut taken).then_some(())?;
        taken.reverse();
        taken.into_iter().map(|id| decode(&id)).collect()
    }
}

/// Gives parts to segments, from the left; ids are pushed from the last to the first. A path has few segments (a server limits
/// the length of a request's line), and no pattern has more than two places that may be long.
fn take(segments: &[Segment], parts: &[&str], taken: &mut Vec<String>) -> bool {
    let Some((first, segments)) = segments.split_first() else { return parts.is_empty() };
    match first {
        Segment::Word(word) => parts.first() == Some(word) && take(segments, &parts[1..], taken),
        Segment::One => {
            let Some(part) = parts.first().filter(|p| !p.is_empty()) else { return false };
            let fits = take(segments, &parts[1..], taken);
            if fits {
                taken.push((*part).to_owned());
            }
            fits
        }
        Segment::Some => {
            // The words that follow need places of their own: an id is as long as it can be.
            let most = parts.len().saturating_sub(segments.len());
            // Slashes alone are no id.
            let least = parts.iter().take_while(|p| p.is_empty()).count() + 1;
            for count in (least..=most).rev() {
                if take(segments, &parts[count..], taken) {
                    taken.push(parts[..count].join("/"));
                    return true;
                }
            }
            false
        }
    }
}

/// Undoes percent-encoding; `None` where that is wrong, or the bytes are no text.
#[must_use]
pub fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let digit = |b: Option<u8>| char::from(b?).to_digit(16);
        match byte {
            b'%' => out.push((digit(bytes.next())? * 16 + digit(bytes.next())?) as u8),
            _ => out.push(byte),
        }
    }
    String::from_utf8(out).ok()
}

/// Routes, each with what it leads to.
#[derive(Debug)]
pub struct Router<T> {
    routes: Vec<(Pattern, T)>,
}

impl<T> Router<T> {
    /// Of patterns in the order of a table; of two that say equally much, the first wins.
    pub fn new(routes: impl IntoIterator<Item = (&'static str, T)>) -> Router<T> {
        Router { routes: routes.into_iter().map(|(pattern, to)| (Pattern::new(pattern), to)).collect() }
    }

    /// Where a raw path leads, with the ids in it.
    pub fn find(&self, path: &str) -> Option<(&T, Vec<String>)> {
        let mut best: Option<(&Pattern, &T, Vec<String>)> = None;
        for (pattern, to) in &self.routes {
            if best.as_ref().is_some_and(|(found, ..)| found.words >= pattern.words) {
                continue;
            }
            if let Some(ids) = pattern.ids(path) {
                best = Some((pattern, to, ids));
            }
        }
        best.map(|(_, to, ids)| (to, ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router() -> Router<&'static str> {
        let patterns = [
            "/v1/jobs",
            "/v1/jobs/parse",
            "/v1/job/{id*}",
            "/v1/job/{id*}/allocations",
            "/v1/job/{id*}/plan",
            "/v1/job/{id*}/periodic/force",
            "/v1/job/{id*}/versions",
            "/v1/job/{id*}/versions/{tag}/tag",
            "/v1/service/{name}",
            "/v1/service/{name}/{id}",
            "/v1/client/fs/cat/{id}",
            "/v1/var/{path*}",
        ];
        Router::new(patterns.map(|p| (p, p)))
    }

    #[test]
    fn a_job_id_may_hold_slashes_in_both_writings() {
        let router = router();
        let ids = ["web", "a/b", "a/b/c", "par/dispatch-1-abc", "allocations", "plan/plan", "periodic", "versions"];
        for id in ids {
            for written in [id.to_owned(), id.replace('/', "%2F"), id.replace('/', "%2f")] {
                for (rest, pattern) in [
                    ("/allocations", "/v1/job/{id*}/allocations"),
                    ("/plan", "/v1/job/{id*}/plan"),
                    ("/periodic/force", "/v1/job/{id*}/periodic/force"),
                    ("/versions", "/v1/job/{id*}/versions"),
                ] {
                    let path = format!("/v1/job/{written}{rest}");
                    assert_eq!(router.find(&path), Some((&pattern, vec![id.to_owned()])), "{path}");
                }
            }
        }
        assert_eq!(router.find("/v1/job/a/b"), Some((&"/v1/job/{id*}", vec!["a/b".to_owned()])));
        // A lone verb is a job's id.
        assert_eq!(router.find("/v1/job/allocations"), Some((&"/v1/job/{id*}", vec!["allocations".to_owned()])));
        // A written slash is never a verb's.
        assert_eq!(router.find("/v1/job/a%2Fplan"), Some((&"/v1/job/{id*}", vec!["a/plan".to_owned()])));
        let tag = router.find("/v1/job/a/b/versions/gold/tag").unwrap();
        assert_eq!(tag, (&"/v1/job/{id*}/versions/{tag}/tag", vec!["a/b".to_owned(), "gold".to_owned()]));
    }

    #[test]
    fn other_paths_are_other_paths() {
        let router = router();
        assert_eq!(router.find("/v1/jobs").unwrap().0, &"/v1/jobs");
        assert_eq!(router.find("/v1/jobs/parse").unwrap().0, &"/v1/jobs/parse");
        assert_eq!(router.find("/v1/var/a/b%20c").unwrap().1, ["a/b c"]);
        assert_eq!(router.find("/v1/service/web/_id").unwrap().1, ["web", "_id"]);
        assert_eq!(router.find("/v1/job//a").unwrap().1, ["/a"]);
        // As long as a request's line may be, and found out in no time.
        assert_eq!(router.find(&format!("/v1/job/{}", "/".repeat(60_000))), None);
        for no in [
            "/",
            "",
            "/v1",
            "/v1/job",
            "/v1/job/",
            "/v1/job//",
            "/v1/jobs/",
            "/v1/client/fs/cat/a/b",
            "/v1/job/%zz",
            "/v1/job/%ff",
        ] {
            assert_eq!(router.find(no), None, "{no}");
        }
        // As long as a server takes one: the time grows with its length, and not with the square of it.
        let began = std::time::Instant::now();
        assert_eq!(router.find(&format!("/v1/job/{}", "/".repeat(60_000))), None);
        assert!(began.elapsed() < std::time::Duration::from_secs(20));
    }
}
