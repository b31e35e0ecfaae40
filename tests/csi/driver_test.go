package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

type clients struct {
	csi.ControllerClient
	csi.NodeClient
}

func dial(t *testing.T, d *driver) clients {
	t.Helper()
	connection, err := grpc.NewClient(d.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return clients{csi.NewControllerClient(connection), csi.NewNodeClient(connection)}
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func writer() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func create(t *testing.T, c clients, name string, secrets map[string]string) string {
	t.Helper()
	made, err := c.CreateVolume(soon(t), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{writer()}, Secrets: secrets,
	})
	if err != nil {
		t.Fatal(err)
	}
	return made.GetVolume().GetVolumeId()
}

func wantCode(t *testing.T, err error, code codes.Code) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("want %s, have %v", code, err)
	}
}

func entries(t *testing.T, path string) []entry {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all := []entry{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		one := entry{}
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	return all
}

func script(t *testing.T, lines ...string) string {
	path := filepath.Join(t.TempDir(), "faults")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func monolith(t *testing.T) options {
	dir := t.TempDir()
	return options{
		node: "node-0", name: "csi.agentbin.test", version: "1.0.0", services: "monolith", stage: true, dry: true, most: 1000,
		state: filepath.Join(dir, "state"), log: filepath.Join(dir, "log"),
	}
}

func TestFaultsHappenAsOftenAsTheScriptSays(t *testing.T) {
	o := monolith(t)
	o.faults = script(t,
		`{"call":"NodeStage*","do":"code","code":"UNAVAILABLE","skip":1,"times":2}`,
		`{"call":"NodeStageVolume","step":"mounted","do":"lose"}`)
	d := serve(t, o)
	c := dial(t, d)
	id, staging := create(t, c, "one", nil), t.TempDir()
	stage := func() error {
		_, err := c.NodeStageVolume(soon(t), &csi.NodeStageVolumeRequest{
			VolumeId: id, StagingTargetPath: staging, VolumeCapability: writer(),
		})
		return err
	}
	wantCode(t, stage(), codes.Unavailable)         // it is done, and the answer lost
	untilLogged(t, o.log, "end", "NodeStageVolume") // until then the volume is taken
	if v, err := d.store.volume(id); err != nil || !v.isAt(staging) || !d.mounts.isMounted(staging) {
		t.Errorf("the volume is not staged: %+v, %v", v, err)
	}
	wantCode(t, stage(), codes.Unavailable)
	wantCode(t, stage(), codes.Unavailable)
	wantCode(t, stage(), codes.OK)
	told := []string{}
	for _, one := range entries(t, o.log) {
		if one.Seq != len(told)+1 {
			t.Errorf("entry %d is number %d", len(told)+1, one.Seq)
		}
		told = append(told, one.Phase+" "+one.Call+" "+one.Code+one.Fault)
	}
	if want := "fault NodeStageVolume lose at mounted"; told[3] != want {
		t.Errorf("want %q among %q", want, told)
	}
	wantCode(t, func() error {
		_, err := c.DeleteVolume(soon(t), &csi.DeleteVolumeRequest{VolumeId: id})
		return err
	}(), codes.FailedPrecondition)
}

// untilLogged waits until the driver has come to a phase of a call.
func untilLogged(t *testing.T, log, phase, call string) {
	t.Helper()
	for ctx := soon(t); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		for _, one := range entries(t, log) {
			if one.Phase == phase && one.Call == call {
				return
			}
		}
	}
	t.Fatalf("no %s of %s", phase, call)
}

func TestAVolumeIsWorkedOnByOneCallAtATime(t *testing.T) {
	o := monolith(t)
	o.faults = script(t, `{"call":"NodeStageVolume","step":"noted","do":"hang"}`)
	c := dial(t, serve(t, o))
	id, staging := create(t, c, "one", nil), t.TempDir()
	ctx, cancel := context.WithCancel(soon(t))
	var waiting sync.WaitGroup
	request := &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: writer()}
	waiting.Go(func() {
		_, err := c.NodeStageVolume(ctx, request)
		wantCode(t, err, codes.Canceled)
	})
	untilLogged(t, o.log, "fault", "NodeStageVolume")
	_, err := c.NodeStageVolume(soon(t), request)
	wantCode(t, err, codes.Aborted)
	cancel()
	waiting.Wait()
}

func TestSecretsAreAskedForAndNotLogged(t *testing.T) {
	o := monolith(t)
	o.secret = "password=v3ry-s3cret"
	c := dial(t, serve(t, o))
	_, err := c.CreateVolume(soon(t), &csi.CreateVolumeRequest{
		Name: "one", VolumeCapabilities: []*csi.VolumeCapability{writer()}, Secrets: map[string]string{"password": "wrong"},
	})
	wantCode(t, err, codes.Unauthenticated)
	create(t, c, "one", map[string]string{"password": "v3ry-s3cret"})
	text, err := os.ReadFile(o.log)
	if err != nil || strings.Contains(string(text), "s3cret") || !strings.Contains(string(text), `"secrets":["password"]`) {
		t.Errorf("the log: %v\n%s", err, text)
	}
}
