//! Bodies: read within limits of size and time, and packed for those who can unpack.

use std::io::Write as _;
use std::time::Duration;

use http_body_util::BodyExt as _;

use super::{Bytes, HeaderMap, Incoming, header};

/// How long a client may pause within a body.
const PAUSE: Duration = Duration::from_secs(30);
/// How long all of a body may take.
const ALL: Duration = Duration::from_mins(2);
/// Shorter bodies are sent as they are.
const WORTH_PACKING: usize = 1024;

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It has more bytes than are allowed.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The client paused for too long, or took too long in all.
    #[error("the body did not come in time")]
    TooSlow,
    /// The connection broke.
    #[error("the body cannot be read: {0}")]
    Broken(#[from] hyper::Error),
}

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// [`BodyError`].
pub async fn read(body: Incoming, limit: usize) -> Result<Bytes, BodyError> {
    let mut all = Vec::new();
    each(body, limit, |data| all.extend_from_slice(&data)).await?;
    Ok(Bytes::from(all))
}

/// Has `take` take a body of at most `limit` bytes, piece by piece.
///
/// # Errors
/// [`BodyError`]: then what was taken is not all of it.
pub async fn each(mut body: Incoming, limit: usize, mut take: impl FnMut(Bytes)) -> Result<(), BodyError> {
    if hyper::body::Body::size_hint(&body).lower() > limit as u64 {
        return Err(BodyError::TooLarge(limit));
    }
    let read = async {
        let mut length = 0;
        while let Some(frame) = tokio::time::timeout(PAUSE, body.frame()).await.map_err(|_| BodyError::TooSlow)? {
            if let Ok(data) = frame?.into_data() {
                length += data.len();
                if length > limit {
                    return Err(BodyError::TooLarge(limit));
                }
                take(data);
            }
        }
        Ok(())
    };
    tokio::time::timeout(ALL, read).await.map_err(|_| BodyError::TooSlow)?
}

/// Whether a client takes gzip.
#[must_use]
pub fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|one| {
        let (name, quality) = one.split_once(';').unwrap_or((one, ""));
        let quality = quality.trim().strip_prefix("q=").unwrap_or("1");
        matches!(name.trim(), "gzip" | "*") && quality.parse::<f32>().is_ok_and(|q| q > 0.0)
    })
}

/// A body packed with gzip; `None` when it is too short to be worth it.
#[must_use]
pub fn gzip(body: &[u8]) -> Option<Vec<u8>> {
    if body.len() < WORTH_PACKING {
        return None;
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::with_capacity(body.len() / 4), flate2::Compression::fast());
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn gzip_is_for_those_who_take_it() {
        let takes = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, value.parse().unwrap());
            takes_gzip(&headers)
        };
        assert!(takes("gzip") && takes("deflate, gzip;q=0.5") && takes("*"));
        assert!(!takes("identity") && !takes("gzip;q=0") && !takes("br") && !takes_gzip(&HeaderMap::new()));
        let body = b"0123456789".repeat(1000);
        let packed = gzip(&body).unwrap();
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == body && packed.len() < body.len() / 10);
        assert_eq!(gzip(b"short"), None);
    }
}
