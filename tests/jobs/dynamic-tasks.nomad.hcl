# A dynamic block makes a task for each element.
# prints: resize-small | small at 320
# prints: resize-large | large at 1280

variable "sizes" {
  type = map(number)
  default = {
    small = 320
    large = 1280
  }
}

job "resize" {
  type = "batch"

  group "resize" {
    dynamic "task" {
      for_each = var.sizes
      iterator = size
      labels   = ["resize-${size.key}"]

      content {
        driver = "exec"

        config {
          command = "/bin/echo"
          args    = ["${size.key} at ${size.value}"]
        }
      }
    }
  }
}
