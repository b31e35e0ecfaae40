job "web" {
  group "api" {
    network {
      mode = "host"
    }
    network {
      mode = "bridge"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
