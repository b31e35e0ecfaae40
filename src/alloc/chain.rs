//! An error with its causes, as text.

use crate::spec::{LONGEST_MESSAGE, shortened};

/// An error with its causes on one line, each cause once, and the whole line limited in length.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    chain_within(error, LONGEST_MESSAGE)
}

/// The same with at most about `most` bytes.
#[must_use]
pub fn chain_within(error: &dyn std::error::Error, most: usize) -> String {
    let mut told = String::new();
    for cause in std::iter::successors(Some(error), |e| e.source()).map(ToString::to_string) {
        // Some messages of libraries end with their cause.
        if told.is_empty() {
            told = cause;
        } else if !told.ends_with(&cause) {
            told = format!("{told}: {cause}");
        }
        if told.len() > most {
            break;
        }
    }
    shortened(&told, most).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Failed(&'static str, #[source] Option<Box<Failed>>);

    #[test]
    fn a_cause_is_told_once_and_no_message_is_endless() {
        let of = |texts: &[&'static str]| {
            texts.iter().rev().fold(None, |inner, text| Some(Box::new(Failed(text, inner)))).unwrap()
        };
        assert_eq!(chain(&*of(&["cannot start", "no space"])), "cannot start: no space");
        assert_eq!(chain(&*of(&["cannot start: no space", "no space"])), "cannot start: no space");
        assert_eq!(chain(&*of(&["a: b: c", "b: c", "c"])), "a: b: c");
        let long: &'static str = Box::leak("x".repeat(1 << 20).into_boxed_str());
        assert!(chain(&*of(&["a", long, "b"])).len() < LONGEST_MESSAGE + 32);
    }
}
