//! A request for an object, signed in its URL.

use std::time::Duration;

use rusty_s3::{Bucket, Credentials, S3Action as _, UrlStyle};
use url::Url;

use super::FetchError;
use crate::spec::Getter;

/// How long the signature is valid; it is checked when the request begins.
const VALID: Duration = Duration::from_mins(15);

/// The URL of the object.
///
/// # Errors
/// When the bucket is invalid.
pub(super) fn presigned(getter: &Getter) -> Result<Url, FetchError> {
    let Getter::S3 { endpoint, path_style, bucket, key, region, credentials, version } = getter else {
        return Err(FetchError::lasting("not an s3 source"));
    };
    let wrong = |error: &dyn std::fmt::Display| FetchError::lasting(format!("s3 bucket {bucket:?}: {error}"));
    let style = if *path_style { UrlStyle::Path } else { UrlStyle::VirtualHost };
    let endpoint = Url::parse(endpoint).map_err(|e| wrong(&e))?;
    let bucket = Bucket::new(endpoint, style, bucket.clone(), region.clone()).map_err(|e| wrong(&e))?;
    let credentials = credentials.as_ref().map(|(id, secret, token)| match token {
        Some(token) => Credentials::new_with_token(id, secret, token),
        None => Credentials::new(id, secret),
    });
    let mut action = bucket.get_object(credentials.as_ref(), key);
    if let Some(version) = version {
        action.query_mut().insert("versionId", version.clone());
    }
    Ok(action.sign(VALID))
}
