//! The network of a group: a container that only holds the network namespace. Never joins one itself.

use std::collections::HashMap;

use super::config::infra_image;
use super::image::{Reference, Wanted};
use super::task::Auth;
use super::{LABEL_ALLOC, LABEL_NODE, LABEL_REMOVED_BY, LABEL_START, Shared};
use crate::docker::Container;
use crate::docker::models::{ContainerCreateBody, HostConfig, RestartPolicy, RestartPolicyNameEnum};
use crate::driver::failed;
use crate::driver::{DriverError, NetworkIsolation, NetworkMode};
use crate::spec::collections::BTreeMap;

/// Label of the network that holds its container's id; Nomad's.
pub(super) const LABEL_SANDBOX: &str = "docker_sandbox_container_id";
const LABEL_HOSTNAME: &str = "docker_sandbox_hostname";
/// Name prefix of these containers; Nomad's.
pub(super) const PREFIX: &str = "nomad_init_";
/// How often such a container that cannot be started is created again.
const CONFLICTS: u32 = 3;

fn network(container: &Container, hostname: &str) -> NetworkIsolation {
    let mut labels = BTreeMap::from([(LABEL_SANDBOX.to_owned(), container.id.clone())]);
    if !hostname.is_empty() {
        labels.insert(LABEL_HOSTNAME.to_owned(), hostname.to_owned());
    }
    NetworkIsolation { mode: NetworkMode::Group, path: container.sandbox.clone().into(), labels, hosts: None }
}

impl Shared {
    pub(super) async fn create_network(
        &self,
        alloc_id: &str,
        hostname: &str,
    ) -> Result<(NetworkIsolation, bool), DriverError> {
        let (life, config) = (self.life()?, self.config());
        let name = format!("{PREFIX}{alloc_id}");
        let found = life.engine.inspect(&name).await.map_err(|e| super::image::unknown(&e))?;
        if let Some(container) = found.filter(|container| container.running) {
            self.know_sandbox(&container.id);
            return Ok((network(&container, hostname), false));
        }
        let (image, named) = if !self.settings.host.fetches_infra_image && config.infra_image == infra_image() {
            (super::pause::image(&life.engine).await?, super::pause::IMAGE)
        } else {
            let reference = Reference::parse(&config.infra_image)?;
            let wanted = Wanted {
                image: &reference,
                auth: &Auth::default(),
                auth_soft_fail: true,
                force_pull: false,
                timeout: config.infra_image_pull_timeout,
                archive: None,
            };
            let user = format!("{alloc_id}/network");
            (self.images.get(&life.engine, &config, &wanted, &user, &|_| {}).await?, config.infra_image.as_str())
        };
        let start = format!("{alloc_id}/network");
        let labels = HashMap::from([
            (LABEL_ALLOC.to_owned(), alloc_id.to_owned()),
            (LABEL_NODE.to_owned(), self.node()),
            (LABEL_REMOVED_BY.to_owned(), self.removed_by().to_owned()),
            (LABEL_START.to_owned(), start.clone()),
        ]);
        let restart = RestartPolicy { name: Some(RestartPolicyNameEnum::UNLESS_STOPPED), maximum_retry_count: None };
        let body = ContainerCreateBody {
            image: Some(named.to_owned()),
            labels: Some(labels),
            hostname: (!hostname.is_empty()).then(|| hostname.to_owned()),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                restart_policy: Some(restart),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let made = life.create(&name, &body, &image, CONFLICTS).await?;
        self.know_sandbox(&made.id);
        match life.start(&made.id).await {
            Ok(container) if container.running && !container.sandbox.is_empty() => {
                Ok((network(&container, hostname), !made.adopted))
            }
            other => {
                self.forget_sandbox(&made.id);
                // The error to return is why it does not run.
                let _retried_later = life.remove_surely(&name, &start).await;
                Err(other.err().unwrap_or_else(|| {
                    failed(format!("the container {name} of the group's network ended at once"), true)
                }))
            }
        }
    }

    pub(super) async fn destroy_network(&self, alloc_id: &str, network: &NetworkIsolation) -> Result<(), DriverError> {
        let (life, config) = (self.life()?, self.config());
        let name = format!("{PREFIX}{alloc_id}");
        let id = network.labels.get(LABEL_SANDBOX).cloned().unwrap_or_else(|| name.clone());
        let found = life.engine.inspect(&id).await.ok().flatten();
        life.remove_surely(&id, &format!("{alloc_id}/network")).await.map_err(|e| super::image::unknown(&e))?;
        self.forget_sandbox(&id);
        if let Some(container) = found {
            self.forget_sandbox(&container.id);
            self.images.release(&life.engine, &config, &container.image, &format!("{alloc_id}/network"));
        }
        Ok(())
    }
}
