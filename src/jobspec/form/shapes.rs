//! What of a job is compared by `job plan`, and in which order it is shown: Nomad's choice, as a real agent's answers have it.

/// A part of an object that is an object of its own in a difference.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    /// An object or null: member, name.
    One(&'static str, &'static str),
    /// Objects without a key, which come and go as a whole: member, name.
    Set(&'static str, &'static str),
    /// Objects of which one of before is one of now: member, name, which.
    Keyed(&'static str, &'static str, Same),
    /// A set of texts or numbers, which is a field for each; of the same name as the member.
    Texts(&'static str),
    /// Any keys, whose names are paths: member, name.
    Any(&'static str, &'static str),
    /// Lists by name, flattened likewise.
    Lists(&'static str, &'static str),
}

/// Which objects of two lists are the same.
#[derive(Debug, Clone, Copy)]
pub(super) enum Same {
    /// Those with one value of a member.
    Key(&'static str),
    /// Those, and a lone one and a lone one.
    KeyOrLone(&'static str),
    /// Those at one position.
    Position,
    /// Services, which have most of name, port and position in common; and a lone one and a lone one.
    Service,
}

use Part::{Any, Keyed, Lists, One, Set, Texts};
use Same::{Key, KeyOrLone, Position};

/// What is shown of a type.
#[derive(Debug)]
pub(super) struct Shape {
    pub name: &'static str,
    /// Fields that are shown, by their names in alphabetical order; maps of strings are shown as `Name[key]`.
    pub fields: &'static [&'static str],
    pub parts: &'static [Part],
}

const fn shape(name: &'static str, fields: &'static [&'static str], parts: &'static [Part]) -> Shape {
    Shape { name, fields, parts }
}

/// The shape of objects of this name. One that is not in the table shows nothing.
pub(super) fn of(name: &str) -> &'static Shape {
    static NOTHING: Shape = shape("", &[], &[]);
    SHAPES.iter().find(|s| s.name == name).unwrap_or(&NOTHING)
}

static SHAPES: &[Shape] = &[
    shape(
        "Job",
        &[
            "AllAtOnce",
            "Dispatched",
            "Meta",
            "Name",
            "Namespace",
            "NodePool",
            "ParentID",
            "Priority",
            "Region",
            "Stop",
            "Type",
        ],
        &[
            Texts("Datacenters"),
            Set("Constraints", "Constraint"),
            Set("Affinities", "Affinity"),
            One("Periodic", "Periodic"),
            One("ParameterizedJob", "ParameterizedJob"),
            One("Multiregion", "Multiregion"),
            One("UI", "UI"),
        ],
    ),
    shape("Constraint", &["LTarget", "Operand", "RTarget"], &[]),
    shape("Affinity", &["LTarget", "Operand", "RTarget", "Weight"], &[]),
    shape("Periodic", &["Enabled", "ProhibitOverlap", "Spec", "SpecType", "TimeZone"], &[Texts("Specs")]),
    shape("ParameterizedJob", &["Payload"], &[Texts("MetaOptional"), Texts("MetaRequired")]),
    shape("Multiregion", &[], &[Keyed("Regions", "Region", Key("Name")), One("Strategy", "Strategy")]),
    shape("Region", &["Count", "Meta", "Name", "NodePool"], &[Texts("Datacenters")]),
    shape("Strategy", &["MaxParallel", "OnFailure"], &[]),
    shape("UI", &["Description"], &[Keyed("Links", "Link", Position)]),
    shape("Link", &["Label", "URL"], &[]),
    shape(
        "TaskGroup",
        &["Count", "MaxRunDuration", "Meta", "PreventRescheduleOnLost", "ShutdownDelay"],
        &[
            Set("Constraints", "Constraint"),
            Set("Affinities", "Affinity"),
            One("RestartPolicy", "RestartPolicy"),
            One("Migrate", "Migrate"),
            One("ReschedulePolicy", "ReschedulePolicy"),
            One("EphemeralDisk", "EphemeralDisk"),
            One("Consul", "Consul"),
            One("Update", "Update"),
            One("Disconnect", "Disconnect"),
            Set("Networks", "Network"),
            One("Scaling", "Scaling"),
            Keyed("Services", "Service", Same::Service),
            Keyed("Volumes", "Volume", Key("Name")),
        ],
    ),
    shape("RestartPolicy", &["Attempts", "Delay", "Interval", "Mode", "RenderTemplates"], &[]),
    shape("Migrate", &["HealthCheck", "HealthyDeadline", "MaxParallel", "MinHealthyTime"], &[]),
    shape("ReschedulePolicy", &["Attempts", "Delay", "DelayFunction", "Interval", "MaxDelay", "Unlimited"], &[]),
    shape("EphemeralDisk", &["Migrate", "SizeMB", "Sticky"], &[]),
    shape("Consul", &["Cluster", "Namespace", "Partition"], &[]),
    shape(
        "Update",
        &[
            "AutoPromote",
            "AutoRevert",
            "Canary",
            "HealthCheck",
            "HealthyDeadline",
            "MaxParallel",
            "MinHealthyTime",
            "ProgressDeadline",
        ],
        &[],
    ),
    shape("Disconnect", &["LostAfter", "Reconcile", "Replace", "StopOnClientAfter"], &[]),
    shape(
        "Network",
        &["Hostname", "Mode"],
        &[
            Set("ReservedPorts", "Static Port"),
            Set("DynamicPorts", "Dynamic Port"),
            One("DNS", "DNS"),
            One("CNI", "CNIConfig"),
        ],
    ),
    shape("Static Port", &["HostNetwork", "IgnoreCollision", "Label", "To", "Value"], &[]),
    shape("Dynamic Port", &["HostNetwork", "Label", "To"], &[]),
    shape("DNS", &["Options", "Searches", "Servers"], &[]),
    shape("CNIConfig", &["Args"], &[]),
    shape("Scaling", &["Enabled", "Max", "Min"], &[Any("Policy", "Policy")]),
    shape(
        "Volume",
        &["AccessMode", "AttachmentMode", "Name", "PerAlloc", "ReadOnly", "Source", "Sticky", "Type"],
        &[One("MountOptions", "MountOptions")],
    ),
    shape("MountOptions", &["FSType"], &[Texts("MountFlags")]),
    shape(
        "Task",
        &["Driver", "Env", "KillSignal", "KillTimeout", "Kind", "Leader", "Meta", "ShutdownDelay", "User"],
        &[
            Set("Constraints", "Constraint"),
            Set("Affinities", "Affinity"),
            Any("Config", "Config"),
            One("Resources", "Resources"),
            One("LogConfig", "LogConfig"),
            One("DispatchPayload", "DispatchPayload"),
            Keyed("Artifacts", "Artifact", Key("RelativeDest")),
            Keyed("Services", "Service", Same::Service),
            Keyed("Secrets", "Secret", Key("Name")),
            One("Vault", "Vault"),
            One("Consul", "Consul"),
            Keyed("Templates", "Template", KeyOrLone("DestPath")),
            One("Identity", "Identity"),
            Keyed("Identities", "Identity", Key("Name")),
            Keyed("Actions", "Action", Position),
            Keyed("VolumeMounts", "VolumeMount", Position),
        ],
    ),
    shape(
        "Resources",
        &["CPU", "Cores", "DiskMB", "IOPS", "MemoryMB", "MemoryMaxMB", "SecretsMB"],
        &[Set("Networks", "Network"), Keyed("Devices", "Device", Key("Name")), One("NUMA", "NUMA")],
    ),
    shape("Device", &["Count", "Name"], &[]),
    shape("NUMA", &["Affinity"], &[Texts("Devices")]),
    shape("LogConfig", &["Disabled", "MaxFileSizeMB", "MaxFiles"], &[]),
    shape("DispatchPayload", &["File"], &[]),
    shape(
        "Artifact",
        &["Chown", "GetterHeaders", "GetterInsecure", "GetterMode", "GetterOptions", "GetterSource", "RelativeDest"],
        &[],
    ),
    shape("Secret", &["Config", "Env", "Name", "Path", "Provider"], &[]),
    shape(
        "Vault",
        &["AllowTokenExpiration", "ChangeMode", "ChangeSignal", "Cluster", "DisableFile", "Env", "Namespace", "Role"],
        &[Texts("Policies")],
    ),
    shape(
        "Template",
        &[
            "ChangeMode",
            "ChangeSignal",
            "DestPath",
            "EmbeddedTmpl",
            "Envvars",
            "ErrMissingKey",
            "Gid",
            "LeftDelim",
            "Once",
            "Perms",
            "RightDelim",
            "SourcePath",
            "Splay",
            "Uid",
            "VaultGrace",
        ],
        &[One("Wait", "Template Wait"), One("ChangeScript", "ChangeScript")],
    ),
    shape("Template Wait", &["Max", "Min"], &[]),
    shape("ChangeScript", &["Command", "FailOnError", "Timeout"], &[Texts("Args")]),
    shape(
        "Identity",
        &["ChangeMode", "ChangeSignal", "Env", "File", "Filepath", "Name", "ServiceName", "TTL"],
        &[Texts("Audience")],
    ),
    shape("Action", &["Command", "Name"], &[Texts("Args")]),
    shape("VolumeMount", &["Destination", "PropagationMode", "ReadOnly", "SELinuxLabel", "Volume"], &[]),
    shape(
        "Service",
        &[
            "Address",
            "AddressMode",
            "CanaryMeta",
            "Cluster",
            "EnableTagOverride",
            "Kind",
            "Meta",
            "Name",
            "Namespace",
            "OnUpdate",
            "PortLabel",
            "Provider",
            "TaggedAddresses",
            "TaskName",
        ],
        &[
            Texts("CanaryTags"),
            Texts("Tags"),
            Keyed("Checks", "Check", Key("Name")),
            One("Connect", "ConsulConnect"),
            One("Identity", "Identity"),
            One("Weights", "Weights"),
        ],
    ),
    shape("Weights", &["Passing", "Warning"], &[]),
    shape(
        "Check",
        &[
            "AddressMode",
            "Body",
            "Command",
            "Expose",
            "FailuresBeforeCritical",
            "FailuresBeforeWarning",
            "GRPCService",
            "GRPCUseTLS",
            "InitialStatus",
            "Interval",
            "Method",
            "Name",
            "Notes",
            "OnUpdate",
            "Path",
            "PortLabel",
            "Protocol",
            "SuccessBeforePassing",
            "TLSServerName",
            "TLSSkipVerify",
            "TaskName",
            "Timeout",
            "Type",
        ],
        &[Lists("Header", "Header"), One("CheckRestart", "CheckRestart")],
    ),
    shape("CheckRestart", &["Grace", "IgnoreWarnings", "Limit"], &[]),
    shape(
        "ConsulConnect",
        &["Native"],
        &[One("SidecarService", "SidecarService"), One("SidecarTask", "SidecarTask"), One("Gateway", "Gateway")],
    ),
    shape("SidecarService", &["DisableDefaultTCPCheck", "Meta", "Port"], &[Texts("Tags"), One("Proxy", "ConsulProxy")]),
    shape(
        "ConsulProxy",
        &["LocalServiceAddress", "LocalServicePort"],
        &[
            One("Expose", "Expose"),
            One("TransparentProxy", "TransparentProxy"),
            Keyed("Upstreams", "ConsulUpstreams", Key("DestinationName")),
            Any("Config", "Config"),
        ],
    ),
    shape("Expose", &[], &[Set("Paths", "Paths")]),
    shape("Paths", &["ListenerPort", "LocalPathPort", "Path", "Protocol"], &[]),
    shape(
        "TransparentProxy",
        &["NoDNS", "OutboundPort", "UID"],
        &[
            Texts("ExcludeInboundPorts"),
            Texts("ExcludeOutboundPorts"),
            Texts("ExcludeOutboundCIDRs"),
            Texts("ExcludeUIDs"),
        ],
    ),
    shape(
        "ConsulUpstreams",
        &[
            "Datacenter",
            "DestinationName",
            "DestinationNamespace",
            "DestinationPartition",
            "DestinationPeer",
            "DestinationType",
            "LocalBindAddress",
            "LocalBindPort",
            "LocalBindSocketMode",
            "LocalBindSocketPath",
        ],
        &[One("MeshGateway", "MeshGateway"), Any("Config", "Config")],
    ),
    shape("MeshGateway", &["Mode"], &[]),
    shape(
        "SidecarTask",
        &["Driver", "Env", "KillSignal", "KillTimeout", "Meta", "Name", "ShutdownDelay", "User"],
        &[
            Any("Config", "Config"),
            One("Resources", "Resources"),
            Keyed("Identities", "Identity", Key("Name")),
            One("LogConfig", "LogConfig"),
            Keyed("VolumeMounts", "VolumeMount", Position),
        ],
    ),
    shape(
        "Gateway",
        &[],
        &[One("Proxy", "Proxy"), One("Ingress", "Ingress"), One("Terminating", "Terminating"), One("Mesh", "Mesh")],
    ),
    shape(
        "Proxy",
        &["ConnectTimeout", "EnvoyDNSDiscoveryType", "EnvoyGatewayBindTaggedAddresses", "EnvoyGatewayNoDefaultBind"],
        &[Any("Config", "Config")],
    ),
    shape("Mesh", &[], &[]),
    shape("Ingress", &[], &[One("TLS", "TLS"), Set("Listeners", "Listener")]),
    shape("TLS", &["Enabled", "TLSMaxVersion", "TLSMinVersion"], &[Texts("CipherSuites"), One("SDS", "SDS")]),
    shape("SDS", &["CertResource", "ClusterName"], &[]),
    shape("Listener", &["Port", "Protocol"], &[Set("Services", "ConsulIngressService")]),
    shape(
        "ConsulIngressService",
        &["MaxConcurrentRequests", "MaxConnections", "MaxPendingRequests", "Name"],
        &[Texts("Hosts")],
    ),
    shape("Terminating", &[], &[Set("Services", "LinkedService")]),
    shape("LinkedService", &["CAFile", "CertFile", "KeyFile", "Name", "SNI"], &[]),
];
