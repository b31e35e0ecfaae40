job "web" {
  group "api" {
    network {
      port "http" {}
    }
    service {
      provider = "nomad"
      port     = "htp"
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
