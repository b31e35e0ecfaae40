// A CSI driver for the tests: identity, controller and node in one process, on directories and loop devices. It does what it is
// asked, keeps a log of it, and fails as a script says. It is held to the specification by csi-sanity, see sanity_test.go.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// options say what the driver is, and where it keeps what.
type options struct {
	endpoint string // unix:///PATH
	state    string // directory of the volumes; survives the process
	node     string
	name     string
	version  string
	log      string // JSON lines, one for each begin and end of a call
	faults   string // see faults.go
	services string // node, controller or monolith
	topology string // KEY=VALUE; empty for none
	secret   string // KEY=VALUE or KEY=sha256:HEX that calls with secrets must carry; empty for none
	most     int    // volumes that the node can have
	attach   bool   // volumes are attached by the controller before a node stages them
	stage    bool   // volumes are staged
	dry      bool   // nothing is mounted: for tests without privileges
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("driver", flag.ContinueOnError)
	flags.StringVar(&o.endpoint, "endpoint", os.Getenv("CSI_ENDPOINT"), "unix:///PATH of the socket")
	flags.StringVar(&o.state, "state", "", "directory of the volumes")
	flags.StringVar(&o.node, "node", "node-0", "id of the node")
	flags.StringVar(&o.name, "name", "csi.agentbin.test", "name of the provider")
	flags.StringVar(&o.version, "version", "1.0.0", "version of the provider")
	flags.StringVar(&o.log, "log", "", "file that calls are appended to")
	flags.StringVar(&o.faults, "faults", "", "file that says which calls fail")
	flags.StringVar(&o.services, "services", "monolith", "node, controller or monolith")
	flags.StringVar(&o.topology, "topology", "", "KEY=VALUE of this node")
	flags.StringVar(&o.secret, "secret", "", "KEY=VALUE, or KEY=sha256:HEX of the value, that calls with secrets must carry")
	flags.IntVar(&o.most, "most", 1000, "volumes that the node can have")
	flags.BoolVar(&o.attach, "attach", false, "volumes are attached first")
	flags.BoolVar(&o.stage, "stage", true, "volumes are staged")
	flags.BoolVar(&o.dry, "dry", false, "mount nothing")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case o.endpoint == "" || o.state == "" || o.node == "":
		return o, errors.New("--endpoint, --state and --node are needed")
	case o.services != "node" && o.services != "controller" && o.services != "monolith":
		return o, fmt.Errorf("--services %q: want node, controller or monolith", o.services)
	}
	return o, nil
}

func (o options) segments() map[string]string {
	key, value, found := strings.Cut(o.topology, "=")
	if !found {
		return nil
	}
	return map[string]string{key: value}
}

// driver is the three services. Everything else of its state is in files, which the next process goes on with.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	options
	store  *store
	mounts mounter
	log    *callLog
	faults *faults
	socket *connections
}

// newDriver makes a driver that listens, and a server that serves it.
func newDriver(o options) (*driver, *grpc.Server, error) {
	store, err := openStore(o.state)
	if err != nil {
		return nil, nil, err
	}
	log, err := openLog(o.log)
	if err != nil {
		return nil, nil, err
	}
	path := strings.TrimPrefix(strings.TrimPrefix(o.endpoint, "unix://"), "unix:")
	// What a killed driver has left.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, nil, err
	}
	d := &driver{options: o, store: store, log: log, mounts: newMounter(o.dry, o.state)}
	d.faults = &faults{path: o.faults}
	d.socket = &connections{Listener: listener}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.around))
	csi.RegisterIdentityServer(server, d)
	if o.services != "node" {
		csi.RegisterControllerServer(server, d)
	}
	if o.services != "controller" {
		csi.RegisterNodeServer(server, d)
	}
	return d, server, nil
}

func run() error {
	o, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	d, server, err := newDriver(o)
	if err != nil {
		return err
	}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-ends
		server.GracefulStop()
	}()
	fmt.Println("ready")
	return server.Serve(d.socket)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}
