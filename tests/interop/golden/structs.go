package main

import "time"

// The structs that a Go driver keeps as its state, by the names that are on the wire.

type reattachConfig struct {
	Protocol string
	Network  string
	Addr     string
	Pid      int
}

type taskState struct {
	ReattachConfig *reattachConfig
	TaskConfig     *taskConfig
	Pid            int
	StartedAt      time.Time
}

type taskConfig struct {
	ID               string
	JobName          string
	JobID            string
	TaskGroupName    string
	ParentJobID      string
	Name             string
	Namespace        string
	NodeName         string
	NodeID           string
	Env              map[string]string
	DeviceEnv        map[string]string
	Resources        *resources
	Devices          []*device
	Mounts           []*mount
	User             string
	AllocDir         string
	StdoutPath       string
	StderrPath       string
	AllocID          string
	NetworkIsolation *networkIsolation
	DNS              *dns
}

type resources struct {
	NomadResources *allocatedResources
	LinuxResources *linuxResources
	Ports          *[]portMapping
}

type allocatedResources struct {
	Cpu struct {
		CpuShares     int64
		ReservedCores []uint16
	}
	Memory struct {
		MemoryMB    int64
		MemoryMaxMB int64
	}
	Networks []*network
	Devices  []*allocatedDevice
}

type allocatedDevice struct {
	Vendor    string
	Type      string
	Name      string
	DeviceIDs []string
}

type network struct {
	_struct bool `codec:",omitempty"`

	Mode          string
	Device        string
	CIDR          string
	IP            string
	Hostname      string
	MBits         int
	DNS           *dns
	ReservedPorts []port
	DynamicPorts  []port
}

type port struct {
	_struct bool `codec:",omitempty"`

	Label           string
	Value           int
	To              int
	HostNetwork     string
	IgnoreCollision bool
}

type portMapping struct {
	_struct bool `codec:",omitempty"`

	Label           string
	Value           int
	To              int
	HostIP          string
	IgnoreCollision bool
}

type linuxResources struct {
	CPUPeriod        int64
	CPUQuota         int64
	CPUShares        int64
	MemoryLimitBytes int64
	OOMScoreAdj      int64
	CpusetCpus       string
	CpusetCgroupPath string
	PercentTicks     float64
}

type device struct {
	TaskPath    string
	HostPath    string
	Permissions string
}

type mount struct {
	RequestName     string
	TaskPath        string
	HostPath        string
	Readonly        bool
	PropagationMode string
	SELinuxLabel    string
}

type networkIsolation struct {
	Mode        string
	Path        string
	Labels      map[string]string
	HostsConfig *hostsConfig
}

type hostsConfig struct {
	Hostname string
	Address  string
}

type dns struct {
	Servers  []string
	Searches []string
	Options  []string
}

func fullState() taskState {
	nomad := &allocatedResources{
		Networks: []*network{{
			Mode: "bridge", Device: "eth0", IP: "10.0.0.1", MBits: 200,
			DNS:           &dns{Servers: []string{"1.1.1.1"}},
			ReservedPorts: []port{{Label: "admin", Value: 8080}},
			DynamicPorts:  []port{{Label: "http", Value: 25000, To: -1, HostNetwork: "public"}},
		}},
		Devices: []*allocatedDevice{{Vendor: "nvidia", Type: "gpu", Name: "t4", DeviceIDs: []string{"0"}}},
	}
	nomad.Cpu.CpuShares = 500
	nomad.Cpu.ReservedCores = []uint16{0, 1, 300}
	nomad.Memory.MemoryMB = 256
	nomad.Memory.MemoryMaxMB = -1
	return taskState{
		ReattachConfig: &reattachConfig{"grpc", "unix", "/tmp/plugin123", 4242},
		Pid:            70000,
		StartedAt:      time.Date(2026, 11, 21, 10, 30, 0, 123_000_000, time.FixedZone("", -5*3600-30*60)),
		TaskConfig: &taskConfig{
			ID:            "7c0f1a2b-0000-0000-0000-000000000001/web/0a1b2c3d",
			JobName:       "example",
			JobID:         "example",
			TaskGroupName: "cache",
			ParentJobID:   "parent",
			Name:          "web",
			Namespace:     "default",
			NodeName:      "node-1",
			NodeID:        "1f2e3d4c-0000-0000-0000-000000000002",
			Env:           map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			DeviceEnv:     map[string]string{"GPU": "0"},
			Resources: &resources{
				NomadResources: nomad,
				LinuxResources: &linuxResources{
					CPUPeriod: 100_000, CPUQuota: 50_000, CPUShares: 500, MemoryLimitBytes: 268_435_456, OOMScoreAdj: -33,
					CpusetCpus: "0-1", CpusetCgroupPath: "/sys/fs/cgroup/nomad.slice/x.scope", PercentTicks: 0.125,
				},
				Ports: &[]portMapping{{Label: "http", Value: 25000, To: 80, HostIP: "10.0.0.1"}},
			},
			Devices:          []*device{{"/dev/fuse", "/dev/fuse", "rwm"}},
			Mounts:           []*mount{{"data", "/data", "/srv/data", true, "private", "z"}},
			User:             "nobody",
			AllocDir:         "/var/nomad/alloc/7c0f1a2b",
			StdoutPath:       "/var/nomad/alloc/7c0f1a2b/alloc/logs/.web.stdout.fifo",
			StderrPath:       "/dev/null",
			AllocID:          "7c0f1a2b-0000-0000-0000-000000000001",
			NetworkIsolation: &networkIsolation{"group", "/var/run/netns/x", map[string]string{"k": "v"}, &hostsConfig{"h", "10.0.0.2"}},
			DNS:              &dns{[]string{"8.8.8.8"}, []string{"local"}, nil},
		},
	}
}
