# A task learns its ports and addresses.
# prints: all four are there

job "ports" {
  type = "batch"

  group "ports" {
    network {
      port "http" {}

      port "admin-ui" {
        static = 18090
      }
    }

    task "show" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          test "$NOMAD_PORT_http" -ge 20000 || exit 1
          test "$NOMAD_ADDR_http" = "$NOMAD_IP_http:$NOMAD_PORT_http" || exit 2
          test "$NOMAD_HOST_PORT_admin_ui" = 18090 || exit 3
          test "$NOMAD_PORT_admin_ui" = 18090 || exit 4
          echo all four are there
        EOF
        ]
      }
    }
  }
}
