//! `/v1/event/stream`: changes of the state, one line of JSON per change.

use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;

use super::Call;
use super::answer::{Answer, Refusal};
use super::{files, shape};
use crate::agent::model::Role;
use crate::agent::state::{Event, EventBatch, Object, State, StateError, Topic};
use crate::http::stream::stream;
use crate::spec::json::json;

/// Interval of heartbeats on a stream.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// A topic that was subscribed to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    topic: String,
    key: String,
}

impl Wanted {
    fn read(text: &str) -> Result<Wanted, Refusal> {
        let (topic, key) = text.split_once(':').unwrap_or((text, "*"));
        if topic.is_empty() || key.is_empty() || key.contains(':') {
            let why = "Invalid topic query: error parsing topics: Invalid key value pair for topic, topic: ";
            return Err(Refusal::bad(why.to_owned() + text));
        }
        Ok(Wanted { topic: topic.to_owned(), key: key.to_owned() })
    }

    fn fits(&self, event: &Event) -> bool {
        let topic = self.topic == "*" || self.topic == event.topic.as_str();
        topic && (self.key == "*" || self.key == event.key || event.filter_keys.contains(&self.key))
    }
}

pub(super) async fn stream_events(call: Call) -> Result<Answer, Refusal> {
    let mut wanted: Vec<Wanted> = call.query.all("topic").map(Wanted::read).collect::<Result<_, _>>()?;
    if wanted.is_empty() {
        wanted.push(Wanted { topic: "*".to_owned(), key: "*".to_owned() });
    }
    let index =
        call.query.text("index").map_or(Ok(0), str::parse).map_err(|_| Refusal::bad("Unable to parse index"))?;
    let namespace = call.namespace().map(str::to_owned);
    let tokens = call.caller.role == Role::Manage;
    let state = call.api.state.clone();
    // Subscribed before the answer begins, so that no later event is missed.
    let (mut events, process) = (state.events(index), call.api.process.clone());
    let body = stream(move |out| async move {
        let fits = |event: &Event| {
            let named =
                event.namespace.is_empty() || namespace.as_ref().is_none_or(|wanted| *wanted == event.namespace);
            let may = tokens || event.topic != Topic::AclToken;
            named && may && wanted.iter().any(|wanted| wanted.fits(event))
        };
        // Also while there are events, of which none fits.
        let mut heartbeat = tokio::time::interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        loop {
            let next = tokio::select! {
                next = events.next() => Some(next),
                _ = heartbeat.tick() => None,
                () = process.clone().ends() => return,
            };
            let line = match next {
                None => "{}\n".to_owned(),
                Some(Err(behind)) => return out.fail(std::io::Error::other(behind)).await,
                Some(Ok(batch)) => match told(&state, &batch, fits) {
                    Ok(Some(value)) => format!("{value}\n"),
                    Ok(None) => continue,
                    Err(error) => return out.fail(std::io::Error::other(error)).await,
                },
            };
            if out.send(line).await.is_err() {
                return;
            }
        }
    });
    Ok(files::raw("application/json", body))
}

/// The events of a change that match the subscription.
fn told(state: &State, batch: &EventBatch, fits: impl Fn(&Event) -> bool) -> Result<Option<Value>, StateError> {
    let mut events = Vec::new();
    for event in batch.events.iter().filter(|event| fits(event)) {
        events.push(json!({
            "Topic": event.topic.as_str(),
            "Type": event.kind,
            "Key": event.key,
            "Namespace": event.namespace,
            "FilterKeys": shape::null_if_empty(json!(event.filter_keys)),
            "Index": batch.index,
            "Payload": payload(state, event)?,
        }));
    }
    Ok((!events.is_empty()).then(|| json!({"Index": batch.index, "Events": events})))
}

/// The object under its name. As in Nomad, an allocation comes without its job.
fn payload(state: &State, event: &Event) -> Result<Value, StateError> {
    let mut payload = Map::new();
    let (name, value) = match event.object()? {
        Object::Job(job) => ("Job", Value::Object(shape::job(&job))),
        Object::Evaluation(eval) => ("Evaluation", shape::evaluation(&eval)),
        Object::Deployment(deployment) => ("Deployment", shape::deployment(&deployment)),
        Object::Node(node) => ("Node", shape::node(&node)),
        Object::Service(service) => ("Service", shape::kept(&*service).into()),
        Object::Token(token) => ("ACLToken", shape::kept(&*token).into()),
        Object::Allocation(alloc) => {
            let mut value = shape::allocation(&alloc, state.read()?.version_of(&alloc)?.as_ref());
            value["Job"] = Value::Null;
            ("Allocation", value)
        }
    };
    payload.insert(name.to_owned(), value);
    Ok(payload.into())
}
