job "web" {
  group "app" {
    volume "data" {
      type   = "host"
      source = "data"
    }
    task "server" {
      driver = "exec"
      volume_mount {
        volume           = "data"
        destination      = "/data"
        propagation_mode = "bidirektional"
      }
    }
  }
}
