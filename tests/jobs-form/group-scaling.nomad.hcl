job "group-scaling" {
  group "g" {
    count = 2
    scaling {
      min = 1
      max = 5
      enabled = false
      policy {
        cooldown = "1m"
        list = [1, "a", true]
        object = {
          inner = {
            deep = 1
          }
        }
        check "cpu" {
          source = "nomad-apm"
          strategy "target-value" {
            target = 70
          }
        }
      }
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
