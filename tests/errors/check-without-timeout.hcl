job "web" {
  group "api" {
    network {
      port "http" {}
    }
    service {
      provider = "nomad"
      port     = "http"
      check {
        type     = "tcp"
        interval = "10s"
      }
    }
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
