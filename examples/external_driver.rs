//! A Nomad task driver, complete: `script` runs the text of a job file with an interpreter, isolated like `exec`.
//!
//! `cargo build --example external_driver`, copy the program as `script` into the agent's `plugin_dir`, and add
//! `plugin "script" {}` to its configuration. A task is then
//!
//! ```hcl
//! task "hello" {
//!   driver = "script"
//!   config {
//!     text = "echo hello from $NOMAD_TASK_NAME"
//!   }
//! }
//! ```
//!
//! Start, stop, signals, stats, logs, `alloc exec`, recovery after a restart: everything that is not here is in
//! `OnExecutor`, whose executor is this very program.

use agentbin::driver::prelude::*;

const DEFAULT_INTERPRETER: &str = "/bin/sh";

fn main() -> std::process::ExitCode {
    // This program is also the executor of its tasks.
    agentbin::driver_main::<Script>()
}

struct Script;

/// What the agent's `plugin "script" { config { ... } }` says.
#[derive(Default)]
struct Config {
    isolated: IsolatedConfig,
    interpreter: String,
}

/// Reads a task's `config`; the keys of `IsolatedConfig` (`cap_add`, `work_dir`, ...) are allowed beside our own.
fn reader(task: &DriverConfig) -> Result<Reader<'_>, DriverError> {
    Reader::new(Script::NAME, task, &[&["text", "args"][..], &IsolatedConfig::TASK_KEYS].concat())
}

#[async_trait]
impl Plan for Script {
    const NAME: &'static str = "script";
    const ISOLATION: Isolation = Isolation::Isolated;
    type Config = Config;

    fn config_schema() -> Spec {
        let interpreter = schema::attr("interpreter", "string", false);
        let mut attributes = IsolatedConfig::schema();
        attributes.push(("interpreter", schema::with_default(interpreter, Literal::string(DEFAULT_INTERPRETER))));
        schema::object(attributes)
    }

    fn read_config(config: &DriverConfig) -> Result<Config, DriverError> {
        let reader = Reader::new(Script::NAME, config, &[&["interpreter"][..], &IsolatedConfig::KEYS].concat())?;
        let interpreter = reader.string("interpreter")?.unwrap_or_else(|| DEFAULT_INTERPRETER.to_owned());
        Ok(Config { isolated: IsolatedConfig::read(&reader)?, interpreter })
    }

    fn common(config: &Config) -> &Common {
        config.isolated.common()
    }

    fn task_config_schema() -> Spec {
        let mut attributes = IsolatedConfig::task_schema();
        attributes.push(("text", schema::attr("text", "string", true)));
        attributes.push(("args", schema::attr("args", "list(string)", false)));
        schema::object(attributes)
    }

    fn capabilities(config: &Config) -> Capabilities {
        config.isolated.capabilities()
    }

    async fn fingerprint(config: &Config, agents: Option<Regime>) -> Fingerprint {
        if let Some(obstacle) = IsolatedConfig::obstacle(agents) {
            return obstacle;
        }
        let mut fingerprint = Fingerprint::healthy(Script::NAME);
        let interpreter = Attribute::String(config.interpreter.clone());
        fingerprint.attributes.insert("driver.script.interpreter".to_owned(), interpreter);
        fingerprint
    }

    fn validate(config: &Config, task: &DriverConfig) -> Result<(), DriverError> {
        let reader = reader(task)?;
        reader.required("text")?;
        config.isolated.validate(&reader)
    }

    fn plan(config: &Config, task: &TaskConfig, spec: &mut LaunchSpec) -> Result<(), DriverError> {
        let reader = reader(&task.config)?;
        spec.command.clone_from(&config.interpreter);
        spec.args = vec!["-c".to_owned(), reader.required("text")?, Script::NAME.to_owned()];
        spec.args.extend(reader.strings("args")?);
        config.isolated.plan(&reader, task, spec)
    }
}
