job "web" {
  group "app" {
    volume "data" {
      type   = "host"
      source = "data"
    }
    task "server" {
      driver = "raw_exec"
      volume_mount {
        volume      = "data"
        destination = "/data"
      }
    }
  }
}
