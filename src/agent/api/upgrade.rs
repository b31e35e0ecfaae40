//! `PUT /v1/agentbin/upgrade`: asks the process that serves the API to go on as another program. Never decides whether it may.

use tokio::sync::oneshot;

use super::Call;
use super::answer::{Answer, Refusal};
use crate::http::StatusCode;
use crate::spec::json::json;

pub(super) async fn upgrade(call: Call) -> Result<Answer, Refusal> {
    let (sender, receiver) = oneshot::channel();
    let busy = |_| Refusal::new(StatusCode::CONFLICT, "another upgrade is in progress");
    call.api.process.replacing.try_send(sender).map_err(busy)?;
    match receiver.await {
        Ok(Ok(())) => Ok(Answer::of(json!({"Replaced": call.api.about.version}))),
        Ok(Err(why)) => Err(Refusal::new(StatusCode::CONFLICT, why)),
        Err(_) => Err(Refusal::failed("the agent ends")),
    }
}
