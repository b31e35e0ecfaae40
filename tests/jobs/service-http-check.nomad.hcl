# A service passes its HTTP check, and answers from outside.
# meanwhile: $AGENTBIN services --json | grep -q '"passing"' && curl -sf http://198.51.100.7:18080/health | grep -q fine
# status: 143

job "web" {
  group "web" {
    network {
      port "http" {
        static = 18080
      }
    }

    service {
      name     = "web"
      provider = "nomad"
      port     = "http"
      tags     = ["v1", "${NOMAD_GROUP_NAME}"]

      check {
        type     = "http"
        path     = "/health"
        interval = "1s"
        timeout  = "2s"
      }
    }

    task "web" {
      driver      = "exec"
      kill_signal = "SIGTERM"

      template {
        data        = "fine\n"
        destination = "local/www/health"
      }

      config {
        command = "busybox"
        args    = ["httpd", "-f", "-p", "${NOMAD_PORT_http}", "-h", "local/www"]
        init    = true
      }
    }
  }
}
