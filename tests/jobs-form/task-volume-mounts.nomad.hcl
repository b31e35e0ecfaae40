job "task-volume-mounts" {
  group "g" {
    volume "v" {
      type = "host"
      source = "s"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      volume_mount {
        volume = "v"
        destination = "/v"
        read_only = true
        propagation_mode = "host-to-task"
        selinux_label = "Z"
      }
      volume_mount {
        volume = "v"
        destination = "/w"
      }
    }
  }
}
