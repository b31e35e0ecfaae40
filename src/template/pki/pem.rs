//! PEM, and Base64 as Go reads it.

use base64::Engine as _;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};

/// Go does not look at the last bits that stand for no byte.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&ALPHABET, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// What Base64 stands for; line ends in it do not count.
pub(in crate::template) fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    LENIENT.decode(text).ok()
}

/// Bytes in Base64 between the lines that say what they are.
pub(in crate::template) fn encode(label: &str, bytes: &[u8]) -> Vec<u8> {
    let mut out = format!("-----BEGIN {label}-----\n").into_bytes();
    for line in STANDARD.encode(bytes).as_bytes().chunks(64) {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.extend_from_slice(format!("-----END {label}-----\n").as_bytes());
    out
}

/// The first block in a text: what it says it is, and its bytes. Text around it and headers in it do not count.
pub(in crate::template) fn decode(text: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    let mut block: Option<(&[u8], Vec<u8>, bool)> = None;
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let blanks = line.iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let line = &line[..line.len() - blanks];
        if let Some(rest) = line.strip_prefix(b"-----BEGIN ") {
            block = rest.strip_suffix(b"-----").map(|label| (label, Vec::new(), true));
        } else if let Some(rest) = line.strip_prefix(b"-----END ") {
            if let Some((label, text, _)) =
                block.take().filter(|(label, ..)| rest.strip_suffix(b"-----") == Some(label))
                && let Some(bytes) = base64(&text)
            {
                return Some((label, bytes));
            }
        } else if let Some((_, text, may_be_header)) = &mut block {
            *may_be_header &= line.contains(&b':');
            if !*may_be_header {
                text.extend(line.iter().filter(|byte| !matches!(byte, b' ' | b'\t')));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j4_pem_is_read_as_it_is_written() {
        let bytes: Vec<u8> = (0..200).collect();
        let text = encode("SOME THING", &bytes);
        let lines: Vec<usize> = text.split(|b| *b == b'\n').map(<[u8]>::len).collect();
        assert_eq!(lines, [26, 64, 64, 64, 64, 12, 24, 0]);
        let read = |text: &[u8]| decode(text).map(|(label, bytes)| (label.to_vec(), bytes));
        let wanted = Some((b"SOME THING".to_vec(), bytes.clone()));
        assert_eq!(read(&text), wanted);
        let text = String::from_utf8(text).unwrap();
        for other in [
            format!("before\n{text}after"),
            text.replace('\n', " \t\r\n"),
            text.replacen("-----\n", "-----\nProc-Type: 4\nA: b\n\n", 1),
            // A block that does not end, or not as it began, is none; the next one is.
            format!("-----BEGIN X-----\nAAAA\n{text}"),
            format!("-----BEGIN X-----\nAAAA\n-----END Y-----\n{text}"),
            format!("-----BEGIN X-----\n!!!!\n-----END X-----\n{text}"),
            text.trim_end().to_owned(),
        ] {
            assert_eq!(read(other.as_bytes()), wanted, "{other}");
        }
        for bad in ["", "-----BEGIN X-----\nAAAA\n", "-----END X-----\n", "x-----BEGIN X-----\nAAAA\n-----END X-----\n"]
        {
            assert_eq!(read(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(base64(b"YW\r\nI="), Some(b"ab".to_vec()));
        assert_eq!(base64(b"YWJ="), Some(b"ab".to_vec()), "bits of no byte");
        assert_eq!((base64(b"YWI"), base64(b"Y WI=")), (None, None));
    }
}
