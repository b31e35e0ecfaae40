job "web" {
  group "api" {
    volume "data" {
      type   = "host"
      source = "data"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      volume_mount {
        volume      = "data"
        destination = "/srv/../etc"
      }
    }
  }
}
