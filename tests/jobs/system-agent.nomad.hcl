# A system job runs until it is stopped, and tidies up then.
# meanwhile: grep -q collecting $OUT
# prints: flushed
# status: 143

job "collector" {
  type = "system"

  group "collector" {
    task "collector" {
      driver      = "exec"
      kill_signal = "SIGTERM"

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          trap 'echo flushed; exit 0' TERM
          echo collecting
          while :; do sleep 1 & wait; done
        EOF
        ]
      }
    }
  }
}
