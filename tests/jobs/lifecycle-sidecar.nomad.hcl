# A sidecar serves while the main task runs, and ends with it.
# prints: main | pong

job "proxy" {
  type = "batch"

  group "app" {
    network {
      port "http" {}
    }

    task "server" {
      driver      = "exec"
      kill_signal = "SIGTERM"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      template {
        data        = "pong\n"
        destination = "local/www/index.html"
      }

      config {
        command = "busybox"
        args    = ["httpd", "-f", "-p", "${NOMAD_PORT_http}", "-h", "local/www"]
        init    = true
      }
    }

    task "main" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "until busybox wget -qO- http://$NOMAD_ADDR_http/; do sleep 0.1; done"]
      }
    }
  }
}
