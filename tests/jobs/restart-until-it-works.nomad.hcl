# A task that fails is started again, as often as its policy says.
# prints: third time lucky

job "flaky" {
  type = "batch"

  group "flaky" {
    restart {
      attempts = 2
      interval = "10m"
      delay    = "100ms"
      mode     = "fail"
    }

    task "flaky" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          echo x >> local/tries
          test $(wc -l < local/tries) = 3 && echo third time lucky
        EOF
        ]
      }
    }
  }
}
