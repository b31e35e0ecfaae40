//! A Nomad task driver: a task of `greet` greets somebody, from a shell that is isolated as a task of `exec` is.

use agentbin::driver::prelude::*;

fn main() -> std::process::ExitCode {
    agentbin::driver_main::<Greet>()
}

struct Greet;

/// What `plugin "greet" { config { ... } }` says: the keys of every isolated driver, and one of ours.
#[derive(Default)]
struct Config {
    isolated: IsolatedConfig,
    greeting: String,
}

#[async_trait]
impl Plan for Greet {
    const NAME: &'static str = "greet";
    const ISOLATION: Isolation = Isolation::Isolated;
    type Config = Config;

    fn config_schema() -> Spec {
        let mut keys = IsolatedConfig::schema();
        let greeting = schema::attr("greeting", "string", false);
        keys.push(("greeting", schema::with_default(greeting, Literal::string("Hello"))));
        schema::object(keys)
    }

    fn read_config(config: &DriverConfig) -> Result<Config, DriverError> {
        let reader = Reader::new(Greet::NAME, config, &[&["greeting"][..], &IsolatedConfig::KEYS].concat())?;
        let greeting = reader.string("greeting")?.unwrap_or_default();
        Ok(Config { isolated: IsolatedConfig::read(&reader)?, greeting })
    }

    fn common(config: &Config) -> &Common {
        config.isolated.common()
    }

    fn task_config_schema() -> Spec {
        let mut keys = IsolatedConfig::task_schema();
        keys.push(("name", schema::attr("name", "string", true)));
        schema::object(keys)
    }

    fn capabilities(config: &Config) -> Capabilities {
        config.isolated.capabilities()
    }

    async fn fingerprint(_: &Config, agents: Option<Regime>) -> Fingerprint {
        IsolatedConfig::obstacle(agents).unwrap_or_else(|| Fingerprint::healthy(Greet::NAME))
    }

    fn validate(config: &Config, task: &DriverConfig) -> Result<(), DriverError> {
        let reader = keys(task)?;
        reader.required("name")?;
        config.isolated.validate(&reader)
    }

    fn plan(config: &Config, task: &TaskConfig, spec: &mut LaunchSpec) -> Result<(), DriverError> {
        let reader = keys(&task.config)?;
        let script = "printf '%s, %s!\\n' \"$1\" \"$2\"";
        spec.command = "/bin/sh".to_owned();
        spec.args = ["-c", script, Greet::NAME, &config.greeting, &reader.required("name")?].map(str::to_owned).into();
        config.isolated.plan(&reader, task, spec)
    }
}

/// The keys that a task may have.
fn keys(task: &DriverConfig) -> Result<Reader<'_>, DriverError> {
    Reader::new(Greet::NAME, task, &[&["name"][..], &IsolatedConfig::TASK_KEYS].concat())
}
