# One isolated task that shows who and where it is.
#
#   agentbin run examples/hello.nomad.hcl
#   agentbin run -var name=you examples/hello.nomad.hcl

variable "name" {
  type    = string
  default = "world"
}

job "hello" {
  type = "batch"

  group "greeter" {
    task "hello" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["local/hello.sh"]
      }

      env {
        GREETING = "Hello, ${var.name}!"
      }

      template {
        destination = "local/hello.sh"
        data        = <<-EOF
          echo "$GREETING"
          echo "I am $(id -un) ($(id -u)), process $$ of task ${NOMAD_TASK_NAME} in job ${NOMAD_JOB_NAME}."
          echo "My root holds: $(ls / | tr '\n' ' ')"
          echo "I may use ${NOMAD_MEMORY_LIMIT} MiB of memory and ${NOMAD_CPU_LIMIT} MHz."
          set -- /proc/[0-9]*
          echo "Capabilities: $(grep CapEff /proc/self/status | cut -f2), processes I see: $#"
        EOF
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
