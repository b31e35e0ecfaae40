job "task-csi" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      csi_plugin {
        id = "p"
        type = "node"
        mount_dir = "/csi2"
        stage_publish_base_dir = "/stage"
        health_timeout = "1m"
      }
    }
  }
}
