# A task finds a service of another group by its template, and asks it.
# prints: client | pong
# meanwhile: grep -q 'client | pong' $OUT
# status: 143

job "pair" {
  group "server" {
    network {
      port "http" {}
    }

    service {
      name     = "pair-http"
      provider = "nomad"
      port     = "http"
    }

    task "server" {
      driver      = "exec"
      kill_signal = "SIGTERM"

      config {
        command = "/bin/sh"
        args    = ["-c", "mkdir local/www; echo pong > local/www/index.html; exec busybox httpd -f -p $NOMAD_PORT_http -h local/www"]
        init    = true
      }
    }
  }

  group "client" {
    task "client" {
      driver      = "exec"
      kill_signal = "SIGTERM"

      template {
        destination = "local/peers"
        change_mode = "noop"
        data        = "{{ range nomadService \"pair-http\" }}http://{{ .Address }}:{{ .Port }}/\n{{ end }}"
      }

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          trap 'exit 0' TERM
          until busybox wget -qO- $(head -1 local/peers); do sleep 0.2; done
          while :; do sleep 1 & wait; done
        EOF
        ]
      }
    }
  }
}
