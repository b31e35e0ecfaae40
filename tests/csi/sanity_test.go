package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"
)

// skipped are the cases that csi-sanity leaves out of this driver, by a part of their names, and why.
var skipped = map[string]string{
	"GroupController Service":                "the driver has no groups of snapshots, and agentbin asks for none",
	"ModifyVolume ":                          "the driver has no classes of volumes, and agentbin asks for none",
	"a volume attribute class":               "the driver has no classes of volumes",
	"an invalid volume attribute class":      "the driver has no classes of volumes",
	"VolumeHealth ":                          "an alpha call, which agentbin does not make",
	"NodeGetVolumeHealth ":                   "an alpha call, which agentbin does not make",
	"NodeGetStorageHealth ":                  "an alpha call, which agentbin does not make",
	"GetSnapshot ":                           "an alpha call, which agentbin does not make",
	"snapshot with accessibility":            "the driver has the snapshots of one node",
	"pagination should detect volumes added": "pending in csi-sanity itself",
}

// serve runs a driver for a test.
func serve(t *testing.T, o options) *driver {
	t.Helper()
	if o.state == "" {
		o.state = filepath.Join(t.TempDir(), "state")
	}
	if o.endpoint == "" {
		// A socket's path is short, and that of a test may not be.
		dir, err := os.MkdirTemp("", "csi")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		o.endpoint = "unix://" + filepath.Join(dir, "s")
	}
	if o.node == "" {
		o.node, o.name, o.version, o.services, o.most = "node-0", "csi.agentbin.test", "1.0.0", "monolith", 1000
	}
	d, server, err := newDriver(o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(d.socket) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil && err != grpc.ErrServerStopped {
			t.Error(err)
		}
	})
	return d
}

// TestSanity holds the driver to the specification, so that what is seen with it counts (F7). CSI_TEST says on what: "dry" (nothing is mounted, the default), "directories"
// or "loops", which need root and belong into a mount namespace. One suite can run in a process.
func TestSanity(t *testing.T) {
	kind := os.Getenv("CSI_TEST")
	o := options{
		attach: true, stage: true, topology: "zone=a", node: "node-0", name: "csi.agentbin.test", version: "1.0.0",
		services: "monolith", most: 5, dry: kind == "" || kind == "dry",
	}
	d := serve(t, o)
	places := t.TempDir()
	config := sanity.NewTestConfig()
	config.Address = d.endpoint
	config.TargetPath, config.StagingPath = filepath.Join(places, "target"), filepath.Join(places, "staging")
	config.TestNodeVolumeAttachLimit = true
	config.TestVolumeSize, config.TestVolumeExpandSize = 32<<20, 48<<20
	switch kind {
	case "", "dry", "directories":
	case "loops":
		config.TestVolumeParameters = map[string]string{"backend": "loop"}
	default:
		t.Fatalf("CSI_TEST=%q", kind)
	}
	context := sanity.GinkgoTest(&config)
	gomega.RegisterFailHandler(ginkgo.Fail)
	left := map[string]bool{}
	ginkgo.ReportAfterSuite("what was left out", func(report ginkgo.Report) {
		for _, one := range report.SpecReports.WithState(types.SpecStatePending | types.SpecStateSkipped) {
			left[one.FullText()] = true
		}
	})
	ginkgo.RunSpecs(t, "csi-sanity")
	context.Finalize()
	used := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		reason := ""
		for part, why := range skipped {
			if strings.Contains(name, part) {
				reason, used[part] = why, true
			}
		}
		t.Logf("left out: %s: %s", name, reason)
		if reason == "" {
			t.Errorf("%q is left out, and nobody says why", name)
		}
	}
	for part := range skipped {
		if !used[part] {
			t.Errorf("no case %q is left out any more: remove its row", part)
		}
	}
}
