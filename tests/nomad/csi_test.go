package nomad

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestCSIRows gives the real command line the commands for CSI volumes and plugins, for a real agent and for ours, each with a
// driver of its own that runs as a task. (F5, F7)
func TestCSIRows(t *testing.T) {
	needsItsRelease(t)
	driver := filepath.Join(t.TempDir(), "driver")
	build := exec.Command("go", "build", "-o", driver, ".")
	build.Dir = filepath.Join("..", "csi")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", build.Args, err, out)
	}
	files := map[string]string{
		"plugin.hcl": fmt.Sprintf(`
job "plugin" {
  group "g" {
    task "p" {
      driver = "raw_exec"
      csi_plugin {
        id   = "disk"
        type = "monolith"
      }
      config {
        command = %q
        args    = ["--state", "${NOMAD_ALLOC_DIR}/state", "--attach"]
      }
      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}`, driver),
		"waits.hcl": `
job "waits" {
  group "g" {
    volume "v" {
      type            = "csi"
      source          = "nosuch"
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}`,
		"data.hcl":    csiVolume("data", "disk", "1MiB", ""),
		"larger.hcl":  csiVolume("data", "disk", "2MiB", ""),
		"smaller.hcl": csiVolume("data", "disk", "2MiB", "capacity_max = \"1MiB\""),
		"renamed.hcl": csiVolume("data", "disk", "2MiB", "snapshot_id = \"x\""),
		"topology.hcl": csiVolume("data", "disk", "2MiB",
			"topology_request {\n  required {\n    topology {\n      segments {\n        zone = \"b\"\n      }\n    }\n  }\n}"),
		"none.hcl":    csiVolume("other", "none", "1MiB", ""),
		"both.hcl":    csiVolume("other", "disk", "1MiB", "snapshot_id = \"x\"\nclone_id = \"y\""),
		"empty.hcl":   "type = \"csi\"\nid = \"other\"\nname = \"other\"\nplugin_id = \"disk\"\n",
		"foreign.hcl": "namespace = \"nosuch\"\n" + csiVolume("other", "disk", "1MiB", ""),
	}
	compareReleases(t, files, csiRows)
}

func csiVolume(id, plugin, size, more string) string {
	return fmt.Sprintf(`
type         = "csi"
id           = %[1]q
name         = "volume-%[1]s"
plugin_id    = %[2]q
capacity_min = %[3]q
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
capability {
  access_mode     = "single-node-reader-only"
  attachment_mode = "file-system"
}
mount_options {
  fs_type     = "ext4"
  mount_flags = ["noatime"]
}
secrets {
  token = "x"
}
%[4]s
`, id, plugin, size, more)
}

// pluginHealthy waits until both services of the plugin answer.
func pluginHealthy(s *side) bool {
	var plugin struct{ ControllersHealthy, NodesHealthy int }
	return s.get("/v1/plugin/csi/disk", &plugin) == nil && plugin.ControllersHealthy == 1 && plugin.NodesHealthy == 1
}

// pluginGone waits until there is no plugin.
func pluginGone(s *side) bool {
	var plugins []struct{ ID string }
	return s.get("/v1/plugins?type=csi", &plugins) == nil && len(plugins) == 0
}

var csiRows = []row{
	{command: "plugin status"},
	{command: "plugin status -type csi"},
	{command: "volume status -type csi"},
	{command: "volume create none.hcl", status: 1},
	{command: "job run -detach plugin.hcl"},
	{command: "plugin status", wait: pluginHealthy},
	{command: "plugin status disk"},
	{command: "plugin status -short disk"},
	{command: "plugin status -verbose disk"},
	{command: "plugin status -json disk", json: true, wait: healthy("plugin", 0, 1)},
	{command: "plugin status nosuch", status: 1},
	{command: "node status -short {node}", but: "no mock_driver and no qemu"},
	{command: "volume create nosuch.hcl", status: 1},
	{command: "volume create empty.hcl", status: 1},
	{command: "volume create both.hcl", status: 1},
	{command: "volume create foreign.hcl", status: 1},
	{command: "volume create data.hcl"},
	{command: "volume create data.hcl"},
	{command: "volume register data.hcl"},
	{command: "volume register renamed.hcl", status: 1},
	{command: "volume register none.hcl", status: 1},
	{command: "volume create topology.hcl"},
	{command: "volume create larger.hcl"},
	{command: "volume create smaller.hcl", status: 1},
	{command: "volume status -type csi"},
	{command: "volume status -type csi -verbose", but: "a volume whose registration failed is not listed"},
	{command: "volume status -type csi data"},
	{command: "volume status -type csi -short data"},
	{command: "volume status -type csi -verbose data"},
	{command: "volume status -type csi -json data", json: true},
	{command: "volume status -type csi nosuch", status: 1},
	{command: "volume status"},
	{command: "volume status data"},
	{command: "volume snapshot create data snap"},
	{command: "volume snapshot create nosuch snap", status: 1},
	{command: "volume snapshot list -plugin disk"},
	{command: "volume snapshot list -plugin nosuch", status: 1},
	{command: "volume snapshot delete nosuch x", status: 1},
	{command: "volume snapshot delete disk {snapshot:disk}"},
	{command: "volume snapshot list -plugin disk"},
	{command: "volume claim list"},
	{command: "volume claim delete 00000000-0000-0000-0000-000000000000", status: 1},
	{command: "volume deregister data"},
	{command: "volume create data.hcl"},
	{command: "job run -detach waits.hcl"},
	{command: "eval status {eval:waits}", wait: evaluated("waits")},
	{command: "volume detach data {node}", status: 1, but: "a real agent refuses where there is nothing to detach"},
	{command: "volume detach nosuch {node}", status: 1},
	{command: "operator api /v1/volumes?type=csi", json: true},
	{command: "operator api /v1/volumes", json: true},
	{command: "operator api /v1/volume/csi/data", json: true},
	{command: "operator api /v1/volume/csi/nosuch"},
	{command: "operator api /v1/plugins?type=csi", json: true},
	{command: "operator api /v1/plugins"},
	{command: "operator api /v1/plugin/csi/disk", json: true},
	{command: "operator api /v1/plugin/csi/nosuch"},
	{command: "operator api /v1/volumes/external?plugin_id=disk", json: true},
	{command: "operator api /v1/volumes/external?plugin_id=nosuch"},
	{command: "operator api /v1/node/{node}", json: true, but: "no mock_driver, no qemu, no Connect; versions of CNI plugins are not looked at"},
	{command: "volume deregister nosuch", status: 1},
	{command: "volume delete nosuch", status: 1},
	{command: "volume delete data"},
	{command: "volume delete data", status: 1},
	{command: "volume status -type csi"},
	{command: "job stop -detach -purge waits"},
	{command: "job stop -detach -purge plugin"},
	{command: "plugin status", wait: pluginGone},
}
