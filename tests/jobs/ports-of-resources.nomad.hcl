# The old form of ports, in a task's resources.
# meanwhile: test "$(curl -sf http://198.51.100.7:18091/)" = old
# status: 143

job "old" {
  datacenters = ["dc1"]

  group "old" {
    task "old" {
      driver      = "exec"
      kill_signal = "SIGTERM"

      config {
        command = "/bin/sh"
        args    = ["-c", "mkdir www; echo old > www/index.html; exec busybox httpd -f -p $NOMAD_PORT_old_http -h www"]
        init    = true
      }

      resources {
        cpu    = 100
        memory = 64

        network {
          mbits = 10

          port "old_http" {
            static = 18091
          }
        }
      }
    }
  }
}
