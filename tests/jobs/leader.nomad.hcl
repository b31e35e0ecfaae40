# When the leader ends, the other tasks are stopped by their signal.
# prints: shipper | shipped the rest

job "leader" {
  type = "batch"

  group "app" {
    task "app" {
      driver = "exec"
      leader = true

      config {
        command = "/bin/sh"
        args    = ["-c", "until test -e $NOMAD_ALLOC_DIR/ready; do sleep 0.1; done"]
      }
    }

    task "shipper" {
      driver       = "exec"
      kill_signal  = "SIGUSR1"
      kill_timeout = "10s"

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          trap 'echo shipped the rest; exit 0' USR1
          touch $NOMAD_ALLOC_DIR/ready
          while :; do sleep 1 & wait; done
        EOF
        ]
      }
    }
  }
}
