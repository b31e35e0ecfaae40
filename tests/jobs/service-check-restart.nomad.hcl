# A failing check restarts the task, and it passes then.
# meanwhile: grep -q 'life 2' $OUT && $AGENTBIN services --json | grep -q '"passing"'
# prints: life 1
# status: 143

job "hangs" {
  group "hangs" {
    network {
      port "http" {}
    }

    restart {
      attempts = 3
      delay    = "100ms"
    }

    task "hangs" {
      driver       = "exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "1s"

      service {
        name     = "hangs"
        provider = "nomad"
        port     = "http"

        check {
          type     = "tcp"
          interval = "1s"
          timeout  = "1s"

          check_restart {
            limit = 2
            grace = "1s"
          }
        }
      }

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          echo x >> local/lives
          echo life $(wc -l < local/lives)
          test $(wc -l < local/lives) = 1 && exec sleep 1000
          exec busybox httpd -f -p $NOMAD_PORT_http
        EOF
        ]
        init = true
      }
    }
  }
}
