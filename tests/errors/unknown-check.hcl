job "web" {
  group "api" {
    network {
      port "http" {}
    }
    service {
      provider = "nomad"
      port     = "http"
      check {
        type     = "htp"
        interval = "10s"
        timeout  = "2s"
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
